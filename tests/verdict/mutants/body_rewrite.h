#pragma once

#include <utility>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln::mutants {

/// A body after a change in its middle: expressions keep their order, later ones have moved.
struct Rewritten {
  Body body;
  std::vector<ExprId> map;  // old id → new id; of the changed expression, what stands in for it
};

/// Appends to a body whose expressions end here.
class Appender {
 public:
  Appender(Body& body, const std::vector<ExprId>& map) : m_body(body), m_map(map) {}

  const ScalarNode& at(ExprId id) const { return m_body.exprs[id]; }
  ExprId add(ScalarNode node) {
    m_body.exprs.push_back(node);
    return static_cast<ExprId>(m_body.exprs.size() - 1);
  }
  ExprId op(ScalarOp op, DType dtype, ExprId a, ExprId b = k_no_expr, ExprId c = k_no_expr) {
    return add({op, dtype, {a, b, c}});
  }
  ExprId integer(int64_t value) {
    ScalarNode node{ScalarOp::constant, DType::i64};
    node.immediate_int = value;
    return add(node);
  }
  ExprId number(DType dtype, double value) {
    ScalarNode node{ScalarOp::constant, dtype};
    if (is_floating(dtype)) {
      node.immediate = value;
    } else {
      node.immediate_int = static_cast<int64_t>(value);
    }
    return add(node);
  }
  ExprId index(uint32_t dim) {
    ScalarNode node{ScalarOp::index, DType::i64};
    node.slot = dim;
    return add(node);
  }
  /// low <= index(dim) < high
  ExprId inside(uint32_t dim, int64_t low, int64_t high) {
    const ExprId i = index(dim);
    const ExprId above = op(ScalarOp::ge, DType::boolean, i, integer(low));
    return op(ScalarOp::bitwise_and, DType::boolean, above, op(ScalarOp::lt, DType::boolean, i, integer(high)));
  }
  /// A copy of access `slot`, its indirect terms as they are in the body that is being made.
  uint32_t copy_access(uint32_t slot) {
    Access access = m_body.accesses[slot];
    for (IndirectTerm& term : access.indirect) term.index = m_map[term.index];
    m_body.accesses.push_back(std::move(access));
    return static_cast<uint32_t>(m_body.accesses.size() - 1);
  }
  Access& access(uint32_t slot) { return m_body.accesses[slot]; }

 private:
  Body& m_body;
  const std::vector<ExprId>& m_map;
};

/// Copies `from`; after expression `at` (or after all, for k_no_expr) `change(appender, copied id)` may append, and what
/// it returns stands in for the expression wherever it is used.
template <typename Change>
Rewritten rewrite(const Body& from, ExprId at, Change change) {
  Rewritten result;
  Body& body = result.body;
  body.accesses = from.accesses;
  Appender appender(body, result.map);
  for (ExprId id = 0; id < from.exprs.size(); ++id) {
    ScalarNode node = from.exprs[id];
    for (ExprId& operand : node.operands) {
      if (operand != k_no_expr) operand = result.map[operand];
    }
    const ExprId copy = appender.add(node);
    result.map.push_back(copy);
    if (id == at) result.map[id] = change(appender, copy);
  }
  // The change was given accesses by their old ids; those it made itself have new ones already.
  for (size_t i = 0; i < from.accesses.size(); ++i) {
    for (size_t t = 0; t < from.accesses[i].indirect.size(); ++t) {
      body.accesses[i].indirect[t].index = result.map[from.accesses[i].indirect[t].index];
    }
  }
  if (at == k_no_expr) change(appender, k_no_expr);
  return result;
}

}  // namespace kiln::mutants
