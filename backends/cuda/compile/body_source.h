#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/kernel/kernel_spec.h"
#include "frontend/kernel/overwrites.h"

/// Expressions of kernel specs as C++ text over prelude.cuh and scalar.cuh.
namespace kiln::cuda {

/// What an element is called in a register ("f32" for f16 and bf16), and in memory.
std::string_view register_type(DType dtype);
std::string_view memory_type(DType dtype);

/// "args.b3"
std::string buffer_name(uint32_t buffer);
/// "kiln_gemm_bf16_512x768x768_nt_wgmma"; `implementation` may be empty.
std::string entry_name(const KernelSpec& spec, std::string_view implementation);
/// What every text begins with: its entry point's name, then, in an open namespace, `struct Arguments { … };` in the order of
/// launch_record.h.
std::string opening(const KernelSpec& spec, std::string_view entry, size_t maps = 0);

/// The identity of a combiner, in the type its total has.
struct Total {
  std::string_view type;  // i32 (0 or 1) for the logical combiners
  std::string identity;
  std::string_view combiner;  // of scalar.cuh
};
Total total_of(Combiner combiner, DType dtype);

/// How the leaves are called where the text will stand.
struct LeafNames {
  std::vector<std::string> dims;     // the iteration coordinates, i32 or i64
  std::vector<std::string> reduced;  // the totals (Total::type)
  std::string accumulator;
  /// Accesses whose element was loaded into, or is to be left in, a variable of the memory type.
  std::map<uint32_t, std::string> loaded, stored;
};

/// Writes statements that compute expressions of one body at one point. Values are called v<id>.
class BodySource {
 public:
  BodySource(const KernelSpec& spec, const Body& body, std::span<const int64_t> extents);

  /// One statement for each of `order` (ascending, as needed_by gives them).
  std::string evaluate(std::span<const ExprId> order, const LeafNames& names, std::string_view indent) const;
  /// Needs the value and the indices of the store evaluated. `guard`, when not empty, is a condition of the store.
  std::string store(const Store& store, const LeafNames& names, std::string_view guard, std::string_view indent) const;
  /// The element an access names, without indirect terms: "12 + 768 * d0 + d1", in the narrowest type that holds it.
  std::string address(const Access& access, const LeafNames& names) const;

  static std::string value_name(ExprId id) { return "v" + std::to_string(id); }
  /// The value and the indirect indices of the stores.
  static std::vector<ExprId> roots_of(const Body& body, std::span<const Store> stores);

 private:
  std::string load(const ScalarNode& node, ExprId id, const LeafNames& names, std::string_view indent) const;
  std::string in_range(const Access& access) const;
  bool is_only_read(uint32_t buffer) const;
  std::string expression(const ScalarNode& node, const LeafNames& names) const;
  std::string cast(const ScalarNode& node) const;
  bool is_narrow(const Access& access) const;

  const KernelSpec& m_spec;
  const Body& m_body;
  std::vector<int64_t> m_extents;
  std::vector<Overwrite> m_overwrites;
};

}  // namespace kiln::cuda
