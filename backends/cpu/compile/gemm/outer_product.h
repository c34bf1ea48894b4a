#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/compile/gemm/blocking.h"
#include "backends/machine.h"
#include "base/expected.h"

namespace kiln::cpu {

/// The choices for a gemm by outer products: lanes along n, elements of A broadcast against vectors of B. In vectors and
/// rows of the form that is compiled (`exchanged`).
struct OuterProductSchedule {
  static constexpr std::string_view k_implementation = "outer_product";
  static constexpr uint32_t k_version = 1;

  bool exchanged = false;  // computed as C^T = B^T A^T
  ReadA read_a = ReadA::direct;
  ReadB read_b = ReadB::direct;
  bool rolled_epilogue = false;  // a loop over the finished tile instead of straight-line code
  bool prefetch_output = false;
  uint8_t unroll = 2;  // steps of k per iteration
  uint16_t tile_rows = 6;
  uint16_t tile_vectors = 4;
  uint32_t group_rows = 96;
  uint32_t k_block = 384;  // steps of k
  uint32_t slab_vectors = 40;
  uint32_t row_parts = 8;

  static constexpr auto types = widened;
  bool operator==(const OuterProductSchedule&) const = default;
  static auto fields(auto& s) {
    return std::tie(s.exchanged, s.read_a, s.read_b, s.rolled_epilogue, s.prefetch_output, s.unroll, s.tile_rows,
                    s.tile_vectors, s.group_rows, s.k_block, s.slab_vectors, s.row_parts);
  }

  /// Errors: invalid_argument when no kernel for the problem, oriented as the schedule says, can be made so.
  Status validate(const GemmProblem& problem) const;
  GemmBlocking blocking(const GemmProblem& problem) const;
  /// "tile 6x64 k 768 slab 320 parts 8 b-panels"
  std::string describe(const GemmProblem& problem) const;
};

/// The same choices for operands that are multiplied by pairs of bf16.
struct Bf16OuterProductSchedule : OuterProductSchedule {
  static constexpr std::string_view k_implementation = "outer_product_bf16";
  static constexpr auto types = bf16_pairs;
  bool operator==(const Bf16OuterProductSchedule&) const = default;
};

/// The same choices for bytes that are multiplied by pairs of i16, and by quads.
struct I16OuterProductSchedule : OuterProductSchedule {
  static constexpr std::string_view k_implementation = "outer_product_i16";
  static constexpr auto types = i16_pairs;
  bool operator==(const I16OuterProductSchedule&) const = default;
};
struct I8OuterProductSchedule : OuterProductSchedule {
  static constexpr std::string_view k_implementation = "outer_product_i8";
  static constexpr auto types = i8_quads;
  bool operator==(const I8OuterProductSchedule&) const = default;
};

/// The same choices for code that takes from its launch what grows with m, n, k and the batch (SizedGemm). Tiles have one size,
/// and edges; slabs and blocks of k have the most that they may be.
struct SizedOuterProductSchedule : OuterProductSchedule {
  static constexpr std::string_view k_implementation = "sized_outer_product";
  static constexpr uint32_t k_version = 1;

  bool is_one_block = false;  // k is no more than k_block

  static auto fields(auto& s) { return std::tuple_cat(OuterProductSchedule::fields(s), std::tie(s.is_one_block)); }
  /// Errors: invalid_argument, as of the others.
  Status validate(const GemmProblem& problem) const;
  GemmBlocking blocking(const GemmProblem& problem) const;
};

/// The same for operands that are multiplied by pairs of bf16.
struct SizedBf16OuterProductSchedule : SizedOuterProductSchedule {
  static constexpr std::string_view k_implementation = "sized_outer_product_bf16";
  static constexpr auto types = bf16_pairs;
};

/// The same code where none of that is the launch's, but where groups begin and end.
struct GroupedOuterProductSchedule : SizedOuterProductSchedule {
  static constexpr std::string_view k_implementation = "grouped_outer_product";
  static constexpr bool k_is_known = true;  // besides groups
};
struct GroupedBf16OuterProductSchedule : SizedOuterProductSchedule {
  static constexpr std::string_view k_implementation = "grouped_outer_product_bf16";
  static constexpr auto types = bf16_pairs;
  static constexpr bool k_is_known = true;
};

/// One schedule for a product of groups.
template <typename Choices>
std::vector<Schedule> grouped_schedules(const KernelSpec& spec, const CpuTarget& target, const Machine& machine);
extern template std::vector<Schedule> grouped_schedules<GroupedOuterProductSchedule>(const KernelSpec&,
                                                                                     const CpuTarget&, const Machine&);
extern template std::vector<Schedule> grouped_schedules<GroupedBf16OuterProductSchedule>(const KernelSpec&,
                                                                                         const CpuTarget&,
                                                                                         const Machine&);

/// How one code serves floating products of the spec's form, by elements and by pairs of bf16. None where operands lie in pieces,
/// for few rows, which are faster without packing, of too many numbers, and where pairs, or AMX's tiles, multiply faster.
std::optional<SizedSpec> sized_outer_product(const KernelSpec& spec, const CpuTarget& target,
                                             std::span<const uint8_t> like);
std::optional<SizedSpec> sized_bf16_outer_product(const KernelSpec& spec, const CpuTarget& target,
                                                  std::span<const uint8_t> like);

/// Whether a short epilogue is not short enough for straight-line code over a whole tile.
bool needs_rolled_epilogue(const GemmProblem& problem);

/// Best first by the analytic model, at least one. The first is within a few per cent of the best for nearly all shapes.
std::vector<OuterProductSchedule> ranked_schedules(const GemmProblem& problem, const Machine& machine);

}  // namespace kiln::cpu
