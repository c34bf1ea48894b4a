#include "frontend/kernel/body_dims.h"

namespace kiln {

uint64_t dims_of_strides(const Access& access) {
  uint64_t dims = 0;
  for (size_t d = 0; d < access.strides.size(); ++d) dims |= access.strides[d] != 0 ? uint64_t{1} << d : 0;
  return dims;
}

BodyDims::BodyDims(const Body& body, uint64_t results) : m_dims(body.exprs.size(), 0) {
  for (ExprId id = 0; id < m_dims.size(); ++id) {
    const ScalarNode& node = body.exprs[id];
    for (const ExprId operand : node.operands) {
      if (operand != k_no_expr) m_dims[id] |= m_dims[operand];
    }
    if (node.op == ScalarOp::index) m_dims[id] |= uint64_t{1} << node.slot;
    if (node.op == ScalarOp::load) m_dims[id] |= of(body.accesses[node.slot]);
    if (node.op == ScalarOp::reduced || node.op == ScalarOp::accumulator) m_dims[id] |= results;
  }
}

uint64_t BodyDims::of(const Access& access) const {
  uint64_t dims = dims_of_strides(access);
  for (const IndirectTerm& term : access.indirect) dims |= m_dims[term.index];
  return dims;
}

}  // namespace kiln
