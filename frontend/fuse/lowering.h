#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "frontend/fuse/fusion_state.h"
#include "frontend/kernel/affine.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// The buffers of a kernel under construction: which value each parameter holds, and in which of its homes.
struct KernelBuffers {
  struct Entry {
    ValueId value = k_none;
    uint32_t home = 0;
    BufferRole role = BufferRole::input;
    ValueId initial = k_none;  // inout: the value it holds before
    ValueId holds = k_none;    // what it holds after, where that is not `value`
  };
  std::vector<Entry> entries;

  uint32_t slot(ValueId value, uint32_t home, BufferRole role);
};

/// Why values cannot be computed inside a kernel, and what would help: nothing, another cut of the iteration space,
/// or a value in a buffer.
struct LoweringFailure {
  std::optional<DimSplit> split;
  std::optional<std::vector<int64_t>> reduced_extents;  // a reduction needs dims of its own
  ValueId materialise = k_none;
  std::string why;
};

/// The reductions of a loops kernel and which of its dims are reduced.
struct ReductionScope {
  std::vector<bool> is_reduced;  // of each iteration dim
  bool is_decided = false;       // false until the first reduction says which
  std::vector<Reduction> reductions;
};

/// Writes the expressions of one body: `emit` gives the expression for one value at one index, going from the value
/// down to what is stored in buffers, through views by composing index maps and through everything the kernel
/// computes itself by its definition. Equal values at equal indices become one expression.
///
/// After a failure all is undefined but `failure()`.
class BodyLowering {
 public:
  BodyLowering(const FusionState& state, GroupId group, KernelBuffers& buffers, std::vector<int64_t> extents,
               ReductionScope* reductions = nullptr);

  /// k_no_expr on failure. The expression has compute_dtype() of the value's dtype.
  ExprId emit(ValueId value, const Index& index) { return emit(value, index, k_no_expr); }

  /// Stores the value into each of its homes; `index` runs over all of it.
  std::vector<Store> store(ValueId value, const Index& index);
  /// One store of an expression to a home of a value, at any index.
  Store store_expr(ExprId expr, ValueId value, uint32_t home, const Index& index, StoreMode mode, BufferRole role);

  /// Makes `value`, a matrix product, a leaf that is not computed here.
  void set_accumulator(ValueId value) { m_accumulator = value; }
  /// The index at which that leaf was met; nothing before it is.
  const std::optional<Index>& accumulator_index() const { return m_accumulator_index; }

  /// An index whose dims name every element of the value once, at which it was emitted; or nothing.
  std::optional<Index> emitted_index(ValueId value) const;

  /// An i64 expression as a dim in [0, bound), for indices.
  Affine indirect(ExprId index, int64_t bound);

  /// What the emitted expressions are.
  Body& body() { return m_body; }
  const DimTable& dims() const { return m_dims; }
  const LoweringFailure& failure() const { return m_failure; }
  bool failed() const { return m_failed; }

  static DType compute_dtype(DType dtype) { return is_half(dtype) ? DType::f32 : dtype; }

  ExprId add_node(ScalarNode node);
  ExprId cast(ExprId expr, DType dtype);
  ExprId constant(double value, DType dtype);
  ExprId index_expr(const Affine& affine);  // i64

 private:
  ExprId emit(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_inline(ValueId value, const Index& index, ExprId predicate);
  /// The expression of a value, rounded where it is a half that other kernels load: all of them go on with the same number.
  ExprId as_loaded(ExprId expr, ValueId value);
  bool is_read_elsewhere(ValueId value) const;
  ExprId emit_pointwise(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_view(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_reshape(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_creation(ValueId value, const Index& index);
  ExprId emit_reduction(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_indexing(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_take(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_gather(ValueId value, const Index& index, ExprId predicate);
  /// `value` at an index of which a part comes from data, which a load must check against `bound`: so does the load of what
  /// is expanded along it, whose address does not depend on that part; what else does not is to be laid out first.
  ExprId emit_chosen(ValueId value, const Index& index, ExprId predicate, ExprId from_data, int64_t bound);
  /// The same, with the term among those that its load checks.
  ExprId with_check(ValueId value, ExprId chosen, const IndirectTerm& term);
  ExprId emit_concat(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_pad(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_slice_scatter(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_cumsum(ValueId value, const Index& index, ExprId predicate);
  ExprId emit_arg_extreme(ValueId value, const Index& index, ExprId predicate);

  /// Makes the row of a reduction run over the kernel's reduced dims; the index of the reduced part, or failure.
  std::optional<Index> reduced_index(ValueId value, const Index& index, const std::vector<int64_t>& extents);
  bool decide_reduced_dims(ValueId value, const Index& index, const std::vector<int64_t>& extents);
  ExprId add_reduction(Combiner combiner, ExprId value, DType dtype);

  ExprId load(ValueId value, const Affine& address, ExprId predicate);
  /// Whether the value is loaded, and lies densely: then its flat index is its address, whatever cuts across its dims.
  bool is_dense_leaf(ValueId value) const;
  uint32_t add_access(uint32_t buffer, const Affine& address);
  /// low ≤ affine < high, within `outer`: an expression, always, never, or failure.
  struct Condition {
    enum class Kind : uint8_t { never, sometimes, always, unknown } kind = Kind::unknown;
    ExprId expr = k_no_expr;
  };
  Condition between(const Affine& affine, int64_t low, int64_t high);
  ExprId both(ExprId a, ExprId b);

  ExprId fail(ValueId value, std::string why);
  ExprId fail_split(DimSplit split);
  const std::vector<int64_t>& extents_of(ValueId value) const { return m_state.facts->extents[value]; }

  const FusionState& m_state;
  GroupId m_group;
  KernelBuffers& m_buffers;
  DimTable m_dims;
  ReductionScope* m_reductions;
  Body m_body;
  std::vector<ExprId> m_indirect;  // the expression of each indirect dim
  std::map<std::vector<int64_t>, ExprId> m_emitted;
  std::map<ValueId, std::vector<Index>> m_emitted_at;
  ValueId m_accumulator = k_none;
  std::optional<Index> m_accumulator_index;
  LoweringFailure m_failure;
  bool m_failed = false;
};

}  // namespace kiln
