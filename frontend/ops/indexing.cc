// Elements chosen by data. An index outside its extent is an error of the data: the reference reports it, kernels set
// the launch's status.

#include <cmath>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/rules.h"
#include "frontend/ops/scalar_math.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

// --- take, index_add: whole rows by number -----------------------------------------------------------------------------

/// x[:dim] + indices + x[dim+1:]
Shape taken_shape(const Shape& x, const Shape& indices, size_t dim) {
  Shape shape(x.begin(), x.begin() + static_cast<ptrdiff_t>(dim));
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), x.begin() + static_cast<ptrdiff_t>(dim) + 1, x.end());
  return shape;
}

Expected<Types> infer_take(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_index(context, 1));
  const TensorType& x = *context.operands[0];
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", x.rank()));
  return Types{{x.dtype, taken_shape(x.shape, context.operands[1]->shape, dim), {}}};
}

double take_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const size_t dim = dim_of(node);
  const ValueId x = node.operands[0], indices = node.operands[1];
  const Split split = split_at(index, e.elements(indices), e.strides(x)[dim]);
  const auto row = e.checked_index(id, e.at(indices, split.at), e.extents(x)[dim]);
  if (!row) return k_nan;
  return e.at(x, (split.outer * e.extents(x)[dim] + *row) * e.strides(x)[dim] + split.rest);
}

Gradients take_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  const ValueId zeros = b.full(b.shape(in[0]), 0, b.dtype(in[0]));
  return b.finish({b.op("index_add", {zeros, in[1], g[0]}, node.attributes), k_none});
}

Expected<Types> infer_index_add(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_index(context, 1));
  const TensorType& x = *context.operands[0];
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", x.rank()));
  KILN_RETURN_IF_ERROR(expect_type(context, 2, {x.dtype, taken_shape(x.shape, context.operands[1]->shape, dim), {}}));
  return infer_same(context);
}

/// Which elements of a line of indices name `row`, in their order: where each row's begin and end, and the elements row by
/// row, are found for all rows when the first is asked for. Nothing where an index is not known: it may be any row's.
std::optional<std::span<const double>> naming(ElementEvaluator& e, NodeId id, const ElementEvaluator::Line& line,
                                              int64_t extent, int64_t row) {
  const auto size = static_cast<size_t>(extent + 1 + line.count);
  const auto sorted = e.scratch(id, line.first, size, [&](std::span<double> out) {
    std::vector<std::vector<int64_t>> named(static_cast<size_t>(extent));
    for (int64_t i = 0; i < line.count; ++i) {
      const double value = e.at(line.value, line.first + i * line.step);
      const auto each = e.checked_index(id, value, extent);
      if (each) named[static_cast<size_t>(*each)].push_back(i);
      if (!std::isnan(value)) continue;
      std::ranges::fill(out, k_nan);
      return;
    }
    size_t count = 0;
    for (size_t each = 0; each < named.size(); ++each) {
      out[each] = static_cast<double>(count);
      for (const int64_t i : named[each]) out[named.size() + 1 + count++] = static_cast<double>(i);
    }
    out[named.size()] = static_cast<double>(count);
  });
  if (std::isnan(sorted.front())) return std::nullopt;
  const auto begin = static_cast<size_t>(sorted[static_cast<size_t>(row)]);
  const auto end = static_cast<size_t>(sorted[static_cast<size_t>(row) + 1]);
  return sorted.subspan(static_cast<size_t>(extent) + 1 + begin, end - begin);
}

double index_add_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const size_t dim = dim_of(node);
  const ValueId x = node.operands[0], indices = node.operands[1], source = node.operands[2];
  const int64_t extent = e.extents(x)[dim], inner = e.strides(x)[dim], rows = e.elements(indices);
  const Split split = split_at(index, extent, inner);
  const auto named = naming(e, id, {indices, 0, 1, rows}, extent, split.at);
  if (!named) return k_nan;
  double total = e.at(x, index);
  for (const double i : *named) {
    total += e.at(source, (split.outer * rows + static_cast<int64_t>(i)) * inner + split.rest);
  }
  return total;
}

Gradients index_add_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  return b.finish({g[0], k_none, b.op("take", {g[0], in[1]}, node.attributes)});
}

// --- gather, scatter: elements by number along one dim -----------------------------------------------------------------

/// Indices of x's rank; extents beside `dim` at most x's.
Status check_gathered(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_index(context, 1));
  const TensorType& x = *context.operands[0];
  const TensorType& indices = *context.operands[1];
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", x.rank()));
  if (indices.rank() != x.rank()) return operand_error(context, 1, fmt::format("rank {}", x.rank()));
  for (size_t d = 0; d < x.rank(); ++d) {
    if (d == dim || indices.shape[d] == x.shape[d]) continue;
    const Dim slack = x.shape[d] - indices.shape[d];
    if (slack.is_constant() && slack.constant() < 0) {
      return operand_error(context, 1, fmt::format("dim {} at most {}", d, x.shape[d].to_string()));
    }
    if (!slack.is_constant()) context.guards.push_back({slack, Guard::Relation::at_least, 0});
  }
  return {};
}

Expected<Types> infer_gather(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_gathered(context));
  return Types{{context.operands[0]->dtype, context.operands[1]->shape, {}}};
}

Expected<Types> infer_scatter(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_gathered(context));
  KILN_RETURN_IF_ERROR(expect_type(context, 2, {context.operands[0]->dtype, context.operands[1]->shape, {}}));
  return infer_same(context);
}

/// The flat index in `target` of element `index` of `indices`, its coordinate along `dim` replaced by `at`.
int64_t redirected(const ElementEvaluator& e, ValueId indices, ValueId target, int64_t index, size_t dim, int64_t at) {
  int64_t address = at * e.strides(target)[dim];
  for (size_t d = 0; d < e.extents(target).size(); ++d) {
    if (d != dim) address += coordinate(e, indices, index, d) * e.strides(target)[d];
  }
  return address;
}

double gather_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const ValueId x = node.operands[0], indices = node.operands[1];
  const auto at = e.checked_index(id, e.at(indices, index), e.extents(x)[dim_of(node)]);
  return at ? e.at(x, redirected(e, indices, x, index, dim_of(node), *at)) : k_nan;
}

/// Visits the elements of the source that land on `index`, in row-major order.
template <typename Visit>
void for_each_scattered(ElementEvaluator& e, const Node& node, NodeId id, int64_t index, Visit&& visit) {
  const ValueId x = node.operands[0], indices = node.operands[1];
  const size_t dim = dim_of(node), rank = e.extents(x).size();
  int64_t base = 0;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t at = coordinate(e, x, index, d);
    if (d == dim) continue;
    if (at >= e.extents(indices)[d]) return;
    base += at * e.strides(indices)[d];
  }
  const int64_t step = e.strides(indices)[dim];
  const ElementEvaluator::Line line{indices, base, step, e.extents(indices)[dim]};
  const auto named = naming(e, id, line, e.extents(x)[dim], coordinate(e, x, index, dim));
  if (!named) return visit(k_nan);
  for (const double i : *named) {
    visit(e.at(node.operands[2], base + static_cast<int64_t>(i) * step));
  }
}

double scatter_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  double last = e.at(graph.node(id).operands[0], index);
  for_each_scattered(e, graph.node(id), id, index, [&](double value) { last = value; });
  return last;
}

double scatter_add_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  double total = e.at(graph.node(id).operands[0], index);
  for_each_scattered(e, graph.node(id), id, index, [&](double value) { total += value; });
  return total;
}

Gradients gather_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  const ValueId zeros = b.full(b.shape(in[0]), 0, b.dtype(in[0]));
  return b.finish({b.op("scatter_add", {zeros, in[1], g[0]}, node.attributes), k_none});
}

Gradients scatter_add_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  return b.finish({g[0], k_none, b.op("gather", {g[0], in[1]}, node.attributes)});
}

/// Right where no two indices meet, as torch's.
Gradients scatter_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  if (!b.status().ok()) return b.status();
  const ValueId zeros = b.full(b.shape(in[2]), 0, b.dtype(in[2]));
  return b.finish(
      {b.op("scatter", {g[0], in[1], zeros}, node.attributes), k_none, b.op("gather", {g[0], in[1]}, node.attributes)});
}

// --- embedding ---------------------------------------------------------------------------------------------------------

Expected<Types> infer_embedding(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_index(context, 1));
  const TensorType& weight = *context.operands[0];
  if (weight.rank() != 2) return operand_error(context, 0, "rank 2");
  return Types{{weight.dtype, taken_shape(weight.shape, context.operands[1]->shape, 0), {}}};
}

double embedding_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const int64_t width = e.extents(node.operands[0])[1];
  const auto row = e.checked_index(id, e.at(node.operands[1], index / width), e.extents(node.operands[0])[0]);
  return row ? e.at(node.operands[0], *row * width + index % width) : k_nan;
}

Gradients decompose_embedding(GraphBuilder& b, const Node&, Values in) {
  return b.finish({b.op("take", {in[0], in[1]}, {{"dim", int64_t{0}}})});
}

Gradients embedding_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  return b.finish({b.op("embedding_backward", {g[0], in[1]},
                        {{"rows", extent_attribute(b.shape(in[0])[0])},
                         {"padding_idx", integer_of(node.attributes, "padding_idx")}}),
                   k_none});
}

Expected<Types> infer_embedding_backward(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 0));
  KILN_RETURN_IF_ERROR(expect_index(context, 1));
  KILN_RETURN_IF_ERROR(expect_rank_at_least(context, 0, 1));
  const TensorType& grad = *context.operands[0];
  Shape wanted = context.operands[1]->shape;
  wanted.push_back(grad.shape.back());
  KILN_RETURN_IF_ERROR(expect_shape(context, 0, wanted));
  return Types{{grad.dtype, {extent_of(context.attributes, "rows"), grad.shape.back()}, {}}};
}

double embedding_backward_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const int64_t rows = e.extents(node.results[0])[0], width = e.extents(node.results[0])[1];
  if (index / width == integer_of(node.attributes, "padding_idx")) return 0;
  double total = 0;
  const ElementEvaluator::Line line{node.operands[1], 0, 1, e.elements(node.operands[1])};
  const auto named = naming(e, id, line, rows, index / width);
  if (!named) return k_nan;
  for (const double i : *named) {
    total += e.at(node.operands[0], static_cast<int64_t>(i) * width + index % width);
  }
  return total;
}

/// Rows of the source summed at the places that indices name, among `rows` of zeros. `dtype`: of the result, where the source is
/// wider, and sums are rounded once. Where fewer places are named than there are rows, what is wide is a row for each name
/// alone: a place's sum is in that of the last which names it.
ValueId rows_summed(GraphBuilder& b, ValueId indices, ValueId source, const Dim& rows, DType dtype) {
  const Dim count = element_count(b.shape(indices)), width = b.shape(source).back();
  const Attributes by_row = {{"dim", int64_t{0}}};
  const bool has_few = count.is_constant() && rows.is_constant() && count.constant() < rows.constant();
  if (dtype == b.dtype(source) || !has_few || count.constant() == 0) {
    const ValueId zeros = b.full({rows, width}, 0, b.dtype(source));
    return b.cast(b.op("index_add", {zeros, indices, source}, by_row), dtype);
  }
  const ValueId names = b.reshape(indices, {count});
  const ValueId last = b.op("scatter", {b.full({rows}, -1, DType::i64), names, b.iota({count}, 0)}, by_row);
  const ValueId zeros = b.full({count, width}, 0, b.dtype(source));
  const ValueId sums =
      b.op("index_add", {zeros, b.op("take", {last, names}, by_row), b.reshape(source, {count, width})}, by_row);
  const ValueId is_unnamed = b.compare("lt", last, 0);
  const ValueId place = b.select(is_unnamed, b.constant(0, last), last);
  const ValueId named = b.op("take", {b.cast(sums, dtype), place}, by_row);
  return b.select(b.unsqueeze(is_unnamed, 1), b.constant(0, named), named);
}

Gradients decompose_embedding_backward(GraphBuilder& b, const Node& node, Values in) {
  ValueId grad = b.widen(in[0]);
  const int64_t padding_idx = integer_of(node.attributes, "padding_idx");
  if (padding_idx >= 0) {
    const ValueId padded = b.compare("eq", in[1], static_cast<double>(padding_idx));
    const ValueId column = b.unsqueeze(padded, b.shape(in[1]).size());
    grad = b.select(column, b.constant(0, grad), grad);
  }
  if (!b.status().ok()) return b.status();
  return b.finish({rows_summed(b, in[1], grad, extent_of(node.attributes, "rows"), b.dtype(in[0]))});
}

// --- index_select ------------------------------------------------------------------------------------------------------

Expected<Types> infer_index_select(const OpContext& context) {
  if (context.operands[1]->rank() != 1) return operand_error(context, 1, "rank 1");
  return infer_take(context);
}

Gradients decompose_index_select(GraphBuilder& b, const Node& node, Values in) {
  return b.finish({b.op("take", {in[0], in[1]}, node.attributes)});
}

}  // namespace

std::span<const OpDef> indexing_ops() {
  static const AttributeDef dim = required("dim", AttributeType::integer);
  static const AttributeDef padding = fallback("padding_idx", AttributeType::integer, int64_t{-1});
  const auto indexing = [](std::string_view name, std::vector<OperandDef> operands, decltype(OpDef::infer) infer,
                           decltype(OpDef::element) element, decltype(OpDef::gradient) gradient) {
    return OpDef{.name = name,
                 .kind = OpKind::indexing,
                 .operands = std::move(operands),
                 .attributes = {dim},
                 .infer = infer,
                 .element = element,
                 .gradient = gradient};
  };
  static const std::vector<OperandDef> read = {{"x"}, {"indices"}}, written = {{"x"}, {"indices"}, {"source"}};
  static const std::vector<OpDef> rows = {
      indexing("take", read, infer_take, take_element, take_gradient),
      indexing("index_add", written, infer_index_add, index_add_element, index_add_gradient),
      indexing("gather", read, infer_gather, gather_element, gather_gradient),
      indexing("scatter", written, infer_scatter, scatter_element, scatter_gradient),
      indexing("scatter_add", written, infer_scatter, scatter_add_element, scatter_add_gradient),
      {.name = "embedding",
       .kind = OpKind::composite,
       .operands = {{"weight"}, {"indices"}},
       .attributes = {padding},
       .infer = infer_embedding,
       .element = embedding_element,
       .decompose = decompose_embedding,
       .gradient = embedding_gradient},
      {.name = "embedding_backward",
       .kind = OpKind::composite,
       .operands = {{"grad"}, {"indices"}},
       .attributes = {required("rows", AttributeType::extent), padding},
       .infer = infer_embedding_backward,
       .element = embedding_backward_element,
       .decompose = decompose_embedding_backward},
      {.name = "index_select",
       .kind = OpKind::composite,
       .operands = read,
       .attributes = {dim},
       .infer = infer_index_select,
       .element = take_element,
       .decompose = decompose_index_select},
  };
  return rows;
}

}  // namespace kiln
