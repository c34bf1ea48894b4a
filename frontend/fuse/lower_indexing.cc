/// Elements chosen by data or by position, as expressions.
///
/// An index that comes from data becomes one more dim of the index map, known to stay below its bound, so that views
/// and pointwise ops under a gather compose as everywhere else; at a buffer it turns into an IndirectTerm.
///
/// concat, pad and slice_scatter choose by position: every part is loaded under the predicate that the index lies in
/// it (outside, the load touches nothing and gives 0), and selects put the parts together. Predicates compare bare
/// iteration dims with constants, which is what lets validate() prove the loads in bounds.
#include <algorithm>

#include "frontend/fuse/lowering.h"
#include "frontend/ops/attributes.h"

namespace kiln {

ExprId BodyLowering::emit_indexing(ValueId value, const Index& index, ExprId predicate) {
  const std::string_view name = m_state.facts->producer(value).op->name;
  if (name == "take") return emit_take(value, index, predicate);
  if (name == "gather") return emit_gather(value, index, predicate);
  if (name == "concat") return emit_concat(value, index, predicate);
  if (name == "pad") return emit_pad(value, index, predicate);
  if (name == "slice_scatter") return emit_slice_scatter(value, index, predicate);
  if (name == "cumsum") return emit_cumsum(value, index, predicate);
  if (name == "argmax" || name == "argmin") return emit_arg_extreme(value, index, predicate);
  return fail(value, std::string(name) + " has no expression");
}

ExprId BodyLowering::emit_take(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const auto dim = static_cast<ptrdiff_t>(integer_of(node.attributes, "dim"));
  const auto rank = static_cast<ptrdiff_t>(extents_of(node.operands[1]).size());
  const Index at(index.begin() + dim, index.begin() + dim + rank);
  const ExprId row = cast(emit(node.operands[1], at, predicate), DType::i64);
  if (row == k_no_expr) return k_no_expr;
  Index from(index.begin(), index.begin() + dim);
  const int64_t bound = extents_of(node.operands[0])[static_cast<size_t>(dim)];
  from.push_back(indirect(row, bound));
  from.insert(from.end(), index.begin() + dim + rank, index.end());
  return emit_chosen(node.operands[0], from, predicate, row, bound);
}

ExprId BodyLowering::emit_gather(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
  const ExprId at = cast(emit(node.operands[1], index, predicate), DType::i64);
  if (at == k_no_expr) return k_no_expr;
  Index from = index;
  from[dim] = indirect(at, extents_of(node.operands[0])[dim]);
  return emit_chosen(node.operands[0], from, predicate, at, extents_of(node.operands[0])[dim]);
}

ExprId BodyLowering::emit_chosen(ValueId value, const Index& index, ExprId predicate, ExprId from_data, int64_t bound) {
  const ExprId chosen = emit(value, index, predicate);
  const auto checks = [&](const IndirectTerm& term) { return term.index == from_data && term.bound <= bound; };
  const bool is_checked = std::ranges::any_of(
      m_body.accesses, [&](const Access& access) { return std::ranges::any_of(access.indirect, checks); });
  return chosen == k_no_expr || is_checked ? chosen : with_check(value, chosen, {from_data, 0, bound});
}

ExprId BodyLowering::with_check(ValueId value, ExprId chosen, const IndirectTerm& term) {
  ScalarNode node = m_body.exprs[chosen];
  if (node.op == ScalarOp::cast) {  // of halves
    node.operands[0] = with_check(value, node.operands[0], term);
    return node.operands[0] == k_no_expr ? k_no_expr : add_node(node);
  }
  if (node.op != ScalarOp::load) return fail(value, "no address depends on the index: nothing checks it");
  if (chosen > term.index) {
    m_body.accesses[node.slot].indirect.push_back(term);
    return chosen;
  }
  // What was loaded before the index, or is the index itself, as the number at it is in a row of numbers, is loaded again.
  m_body.accesses.push_back(m_body.accesses[node.slot]);
  m_body.accesses.back().indirect.push_back(term);
  node.slot = static_cast<uint32_t>(m_body.accesses.size() - 1);
  return add_node(node);
}

ExprId BodyLowering::both(ExprId a, ExprId b) {
  if (a == k_no_expr) return b;
  if (b == k_no_expr) return a;
  return add_node({ScalarOp::bitwise_and, DType::boolean, {a, b, k_no_expr}});
}

BodyLowering::Condition BodyLowering::between(const Affine& affine, int64_t low, int64_t high) {
  const auto [lowest, highest] = range_of(affine, m_dims);
  if (lowest >= low && highest < high) return {Condition::Kind::always, k_no_expr};
  if (highest < low || lowest >= high || low >= high) return {Condition::Kind::never, k_no_expr};
  // affine = step * dim + rest with rest in [0, step): then a bound that step divides is a bound on dim alone.
  const auto lead = std::max_element(affine.terms.begin(), affine.terms.end(), [](const auto& a, const auto& b) {
    return std::abs(a.second) < std::abs(b.second);
  });
  const auto dim = lead->first;
  const auto step = lead->second;
  if (dim >= DimTable::k_first_indirect) return {};
  const Affine rest = affine + Affine::of_dim(dim, -step);
  const auto [rest_low, rest_high] = range_of(rest + -rest.constant, m_dims);
  const int64_t from = low - rest.constant, to = high - rest.constant, size = std::abs(step);
  if (rest_low < 0 || rest_high >= size) return {};
  if ((lowest < low && from % size != 0) || (highest >= high && to % size != 0)) return {};
  const auto compare = [&](ScalarOp op, int64_t bound) {
    ScalarNode node{ScalarOp::constant, DType::i64};
    node.immediate_int = bound;
    const ExprId index = add_node({ScalarOp::index, DType::i64, {k_no_expr, k_no_expr, k_no_expr}, dim});
    return add_node({op, DType::boolean, {index, add_node(node), k_no_expr}});
  };
  ExprId expr = k_no_expr;
  // For step < 0: -size * dim + rest ≥ from  ⇔  dim ≤ -from / size, and < to  ⇔  dim > -to / size.
  if (lowest < low)
    expr = both(expr, step > 0 ? compare(ScalarOp::ge, from / size) : compare(ScalarOp::le, -from / size));
  if (highest >= high)
    expr = both(expr, step > 0 ? compare(ScalarOp::lt, to / size) : compare(ScalarOp::gt, -to / size));
  return {Condition::Kind::sometimes, expr};
}

ExprId BodyLowering::emit_concat(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
  ExprId result = k_no_expr;
  int64_t start = 0;
  for (const ValueId operand : node.operands) {
    const int64_t end = start + extents_of(operand)[dim];
    const Condition inside = between(index[dim], start, end);
    if (inside.kind == Condition::Kind::unknown) return fail(value, "concat: its index is not one iteration dim");
    if (inside.kind != Condition::Kind::never) {
      Index from = index;
      from[dim] = from[dim] + -start;
      const ExprId part = emit(operand, from, both(predicate, inside.expr));
      if (part == k_no_expr) return k_no_expr;
      result = result == k_no_expr || inside.kind == Condition::Kind::always
                   ? part
                   : add_node({ScalarOp::select, m_body.exprs[part].dtype, {inside.expr, part, result}});
    }
    start = end;
  }
  return result == k_no_expr ? constant(0, compute_dtype(m_state.facts->dtype(value))) : result;
}

ExprId BodyLowering::emit_pad(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const ExprId outside = constant(number_of(node.attributes, "value"), compute_dtype(m_state.facts->dtype(value)));
  const std::vector<int64_t>& low = integers_of(node.attributes, "low");
  const std::vector<int64_t>& extents = extents_of(node.operands[0]);
  ExprId inside = k_no_expr;
  Index from = index;
  for (size_t d = 0; d < index.size(); ++d) {
    const Condition condition = between(index[d], low[d], low[d] + extents[d]);
    if (condition.kind == Condition::Kind::unknown) return fail(value, "pad: its index is not one iteration dim");
    if (condition.kind == Condition::Kind::never) return outside;
    inside = both(inside, condition.expr);
    from[d] = from[d] + -low[d];
  }
  const ExprId part = emit(node.operands[0], from, both(predicate, inside));
  if (part == k_no_expr || inside == k_no_expr) return part;
  return add_node({ScalarOp::select, m_body.exprs[part].dtype, {inside, part, outside}});
}

ExprId BodyLowering::emit_slice_scatter(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
  const int64_t step = integer_of(node.attributes, "step");
  const int64_t start = extent_of(node.attributes, "start").constant();
  if (step != 1) return fail(k_none, "slice_scatter with a step has no expression");
  const Condition inside = between(index[dim], start, start + extents_of(node.operands[1])[dim]);
  if (inside.kind == Condition::Kind::unknown) {
    return fail(value, "slice_scatter: its index is not one iteration dim");
  }
  if (inside.kind == Condition::Kind::never) return emit(node.operands[0], index, predicate);
  Index from = index;
  from[dim] = from[dim] + -start;
  const ExprId part = emit(node.operands[1], from, both(predicate, inside.expr));
  if (part == k_no_expr || inside.kind == Condition::Kind::always) return part;
  const ExprId outside = emit(node.operands[0], index, predicate);
  if (outside == k_no_expr) return k_no_expr;
  return add_node({ScalarOp::select, m_body.exprs[part].dtype, {inside.expr, part, outside}});
}

}  // namespace kiln
