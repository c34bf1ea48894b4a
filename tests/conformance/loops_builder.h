#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln::conformance {

/// Writes loops kernels in few words.
class LoopsBuilder {
 public:
  LoopsBuilder(std::vector<int64_t> extents, uint32_t parallel_rank) {
    m_loops.extents = std::move(extents);
    m_loops.parallel_rank = parallel_rank;
  }

  uint32_t buffer(DType dtype, int64_t elements, BufferRole role) {
    m_spec.buffers.push_back({dtype, elements, role});
    return static_cast<uint32_t>(m_spec.buffers.size() - 1);
  }
  uint32_t access(uint32_t buffer, std::vector<int64_t> strides, int64_t offset = 0,
                  std::vector<IndirectTerm> indirect = {}) {
    m_loops.body.accesses.push_back({buffer, offset, std::move(strides), std::move(indirect)});
    return static_cast<uint32_t>(m_loops.body.accesses.size() - 1);
  }
  ExprId load(uint32_t access, ExprId predicate = k_no_expr) {
    return node({ScalarOp::load,
                 m_spec.buffers[m_loops.body.accesses[access].buffer].dtype,
                 {predicate, k_no_expr, k_no_expr},
                 access});
  }
  /// A new buffer that is an input, and its load; `elements` is all that the access reaches.
  ExprId input(DType dtype, const std::vector<int64_t>& strides) {
    int64_t elements = 1;
    for (size_t d = 0; d < strides.size(); ++d) elements += strides[d] * (m_loops.extents[d] - 1);
    return load(access(buffer(dtype, elements, BufferRole::input), strides));
  }
  ExprId index(uint32_t dim) { return node({ScalarOp::index, DType::i64, k_none, dim}); }
  ExprId real(DType dtype, double value) {
    ScalarNode constant{ScalarOp::constant, dtype};
    constant.immediate = value;
    return node(constant);
  }
  ExprId integer(DType dtype, int64_t value) {
    ScalarNode constant{ScalarOp::constant, dtype};
    constant.immediate_int = value;
    return node(constant);
  }
  ExprId op(ScalarOp op, ExprId a, ExprId b = k_no_expr, ExprId c = k_no_expr) {
    const bool truth = (op >= ScalarOp::eq && op <= ScalarOp::ge) || op == ScalarOp::is_nan || op == ScalarOp::is_inf ||
                       op == ScalarOp::logical_not;
    const DType dtype = truth ? DType::boolean : dtype_of(op == ScalarOp::select ? b : a);
    return node({op, dtype, {a, b, c}});
  }
  ExprId cast(ExprId a, DType dtype) {
    return dtype_of(a) == dtype ? a : node({ScalarOp::cast, dtype, {a, k_no_expr, k_no_expr}});
  }
  /// Adds the reduction to the stage being written; its result may be used after next_stage().
  uint32_t reduce(Combiner combiner, ExprId value) {
    m_loops.reductions.push_back({combiner, value});
    m_stage.reductions.push_back(static_cast<uint32_t>(m_loops.reductions.size() - 1));
    return m_stage.reductions.back();
  }
  ExprId reduced(uint32_t reduction) {
    return node({ScalarOp::reduced, reduced_dtype(m_loops, m_loops.reductions[reduction]), k_none, reduction});
  }
  void store(ExprId value, uint32_t access, StoreMode mode = StoreMode::assign) {
    m_stage.stores.push_back({value, access, mode});
  }
  /// Into a new output buffer of the value's dtype.
  void output(ExprId value, const std::vector<int64_t>& strides) {
    int64_t elements = 1;
    for (size_t d = 0; d < strides.size(); ++d) elements += strides[d] * (m_loops.extents[d] - 1);
    store(value, access(buffer(dtype_of(value), elements, BufferRole::output), strides));
  }
  void next_stage(bool finished_is_per_row = false) {
    m_stage.per_row = finished_is_per_row;
    m_loops.stages.push_back(std::exchange(m_stage, {}));
  }
  KernelSpec build(bool last_is_per_row = false) {
    next_stage(last_is_per_row);
    m_spec.kernel = m_loops;
    return m_spec;
  }
  DType dtype_of(ExprId id) const { return m_loops.body.exprs[id].dtype; }
  const std::vector<int64_t>& extents() const { return m_loops.extents; }

 private:
  static constexpr std::array<ExprId, 3> k_none{k_no_expr, k_no_expr, k_no_expr};
  ExprId node(ScalarNode node) {
    m_loops.body.exprs.push_back(node);
    return static_cast<ExprId>(m_loops.body.exprs.size() - 1);
  }

  KernelSpec m_spec;
  LoopsSpec m_loops;
  Stage m_stage;
};

/// Row-major strides of `extents`, with a 0 for each dim not in `dims` (all dims when empty is not said).
inline std::vector<int64_t> dense(const std::vector<int64_t>& extents, std::vector<bool> present = {}) {
  std::vector<int64_t> strides(extents.size(), 0);
  int64_t stride = 1;
  for (size_t d = extents.size(); d-- > 0;) {
    if (!present.empty() && !present[d]) continue;
    strides[d] = stride;
    stride *= extents[d];
  }
  return strides;
}

}  // namespace kiln::conformance
