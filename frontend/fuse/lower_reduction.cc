/// Reductions, and what is made of them.
///
/// A loops kernel has one split of its dims: parallel | reduced. The first reduction that is met decides it: the dims
/// its result depends on are parallel, those left over are reduced (softmax: the stored element runs over both); if
/// none are left over the reduction's own dims are appended (a sum that is stored). Every other reduction of the
/// kernel must fit that split: its result depends on all parallel dims and its row has as many elements as the reduced
/// dims have points. Which point stands for which element is free, since each stage runs over the whole row anyway.
#include <algorithm>
#include <limits>

#include "frontend/fuse/lowering.h"
#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

// What a reduction of nothing gives.
double identity_of(Combiner combiner) {
  switch (combiner) {
    case Combiner::product:
    case Combiner::logical_and:
      return 1;
    case Combiner::maximum:
      return -std::numeric_limits<double>::infinity();
    case Combiner::minimum:
      return std::numeric_limits<double>::infinity();
    default:
      return 0;
  }
}

}  // namespace

bool BodyLowering::decide_reduced_dims(ValueId value, const Index& index, const std::vector<int64_t>& extents) {
  ReductionScope& scope = *m_reductions;
  std::vector<bool> is_parallel(m_dims.iteration.size(), false);
  for (const Affine& affine : index) {
    for (const auto& [dim, coefficient] : affine.terms) {
      if (dim < DimTable::k_first_indirect) is_parallel[dim] = true;
    }
  }
  int64_t left_over = 1;
  for (size_t d = 0; d < is_parallel.size(); ++d) left_over *= is_parallel[d] ? 1 : m_dims.iteration[d];
  if (left_over != product(extents)) {
    if (left_over == 1) {
      m_failure.reduced_extents = extents;
      m_failed = true;
    } else {
      fail(value, "a reduction does not fit the kernel's rows");
    }
    return false;
  }
  scope.is_decided = true;
  scope.is_reduced.assign(is_parallel.size(), false);
  for (size_t d = 0; d < is_parallel.size(); ++d) scope.is_reduced[d] = !is_parallel[d];
  return true;
}

std::optional<Index> BodyLowering::reduced_index(ValueId value, const Index& index,
                                                 const std::vector<int64_t>& extents) {
  if (m_reductions == nullptr) {
    fail(value, "a reduction in a kernel without rows");
    return std::nullopt;
  }
  ReductionScope& scope = *m_reductions;
  if (!scope.is_decided && !decide_reduced_dims(value, index, extents)) return std::nullopt;
  int64_t parallel = 1, reduced = 1;
  Affine flat;
  for (size_t d = m_dims.iteration.size(); d-- > 0;) {
    (scope.is_reduced[d] ? reduced : parallel) *= m_dims.iteration[d];
    if (scope.is_reduced[d]) flat = flat + Affine::of_dim(static_cast<uint32_t>(d), reduced / m_dims.iteration[d]);
  }
  for (const Affine& affine : index) {
    for (const auto& [dim, coefficient] : affine.terms) {
      if (dim >= DimTable::k_first_indirect || scope.is_reduced[dim]) {
        fail(value, "a reduction depends on the kernel's reduced dims");
        return std::nullopt;
      }
    }
  }
  // Each row once: otherwise the reduction would be made again for every point of what it does not depend on.
  if (reduced != product(extents) || parallel != m_state.facts->elements[value] ||
      !is_bijection(index, extents_of(value), m_dims)) {
    fail(value, "a reduction does not fit the kernel's rows");
    return std::nullopt;
  }
  Unflattened result = unflatten(flat, extents, m_dims);
  if (result.split) fail_split(*result.split);
  if (!result.index && !result.split) fail(value, "the kernel's rows are cut differently");
  return result.index;
}

ExprId BodyLowering::add_reduction(Combiner combiner, ExprId value, DType dtype) {
  std::vector<Reduction>& reductions = m_reductions->reductions;
  const Reduction reduction{combiner, value};
  auto found = std::find(reductions.begin(), reductions.end(), reduction);
  if (found == reductions.end()) found = reductions.insert(reductions.end(), reduction);
  const bool is_logical = combiner == Combiner::logical_and || combiner == Combiner::logical_or;
  const DType accumulator = is_logical ? DType::boolean : accumulator_of(m_body.exprs[value].dtype);
  const auto slot = static_cast<uint32_t>(found - reductions.begin());
  return cast(add_node({ScalarOp::reduced, accumulator, {k_no_expr, k_no_expr, k_no_expr}, slot}), dtype);
}

ExprId BodyLowering::emit_reduction(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const std::vector<int64_t>& extents = extents_of(node.operands[0]);
  const std::vector<int64_t>& dims = integers_of(node.attributes, "dims");
  const bool keep_dims = boolean_of(node.attributes, "keep_dims");
  const DType dtype = compute_dtype(m_state.facts->dtype(value));
  if (predicate != k_no_expr) return fail(value, "a reduction under a predicate");
  std::vector<int64_t> reduced_extents;
  std::vector<bool> is_reduced(extents.size(), false);
  for (const int64_t dim : dims) is_reduced[static_cast<size_t>(dim)] = true;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (is_reduced[d]) reduced_extents.push_back(extents[d]);
  }
  if (product(reduced_extents) == 0) return constant(identity_of(node.op->combiner), dtype);
  const std::optional<Index> row = reduced_index(value, index, reduced_extents);
  if (!row) return k_no_expr;
  Index from(extents.size());
  size_t at = 0, row_at = 0;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (is_reduced[d]) {
      from[d] = (*row)[row_at++];
      if (keep_dims) ++at;
    } else {
      from[d] = index[at++];
    }
  }
  const ExprId element = emit(node.operands[0], from, k_no_expr);
  return element == k_no_expr ? k_no_expr : add_reduction(node.op->combiner, element, dtype);
}

// out[i] = Σ_j (j ≤ i ? x[j] : 0): quadratic, but a plain reduction that every backend has, and in order.
ExprId BodyLowering::emit_cumsum(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
  const DType dtype = compute_dtype(m_state.facts->dtype(value));
  if (predicate != k_no_expr) return fail(value, "cumsum under a predicate");
  const std::optional<Index> row = reduced_index(value, index, {extents_of(value)[dim]});
  if (!row) return k_no_expr;
  Index from = index;
  from[dim] = row->front();
  const ExprId element = emit(node.operands[0], from, k_no_expr);
  if (element == k_no_expr) return k_no_expr;
  const ExprId is_before =
      add_node({ScalarOp::le, DType::boolean, {index_expr(from[dim]), index_expr(index[dim]), k_no_expr}});
  const DType element_dtype = m_body.exprs[element].dtype;
  const ExprId kept = add_node({ScalarOp::select, element_dtype, {is_before, element, constant(0, element_dtype)}});
  return add_reduction(Combiner::sum, kept, dtype);
}

// Two reductions: the extreme, then the first index that has it. A NaN is never equal but always the extreme.
ExprId BodyLowering::emit_arg_extreme(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
  if (predicate != k_no_expr) return fail(value, "argmax under a predicate");
  const std::optional<Index> row = reduced_index(value, index, {extents_of(node.operands[0])[dim]});
  if (!row) return k_no_expr;
  Index from = index;
  if (boolean_of(node.attributes, "keep_dims")) {
    from[dim] = row->front();
  } else {
    from.insert(from.begin() + static_cast<ptrdiff_t>(dim), row->front());
  }
  const ExprId element = emit(node.operands[0], from, k_no_expr);
  if (element == k_no_expr) return k_no_expr;
  const Combiner combiner = node.op->name == "argmax" ? Combiner::maximum : Combiner::minimum;
  const DType element_dtype = m_body.exprs[element].dtype;
  const ExprId extreme = add_reduction(combiner, element, element_dtype);
  ExprId has_it = add_node({ScalarOp::eq, DType::boolean, {element, extreme, k_no_expr}});
  if (is_floating(element_dtype)) {
    const ExprId is_nan = add_node({ScalarOp::is_nan, DType::boolean, {element, k_no_expr, k_no_expr}});
    has_it = add_node({ScalarOp::bitwise_or, DType::boolean, {has_it, is_nan, k_no_expr}});
  }
  ScalarNode beyond{ScalarOp::constant, DType::i64};
  beyond.immediate_int = extents_of(node.operands[0])[dim];
  const ExprId candidate = add_node({ScalarOp::select, DType::i64, {has_it, index_expr(from[dim]), add_node(beyond)}});
  return add_reduction(Combiner::minimum, candidate, DType::i64);
}

}  // namespace kiln
