// Tensors put together, cut and scanned, and the places of what is extreme or in order.

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/topk.h"
#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/rules.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

// --- concat, stack -----------------------------------------------------------------------------------------------------

Expected<Types> infer_concat(const OpContext& context) {
  TensorType result{context.operands[0]->dtype, context.operands[0]->shape, {}};
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", result.rank()));
  for (size_t i = 1; i < context.operands.size(); ++i) {
    TensorType wanted = result;
    if (context.operands[i]->rank() == result.rank()) wanted.shape[dim] = context.operands[i]->shape[dim];
    KILN_RETURN_IF_ERROR(expect_type(context, i, wanted));
    result.shape[dim] = result.shape[dim] + wanted.shape[dim];
  }
  return Types{std::move(result)};
}

double concat_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const size_t dim = dim_of(node);
  const int64_t inner = e.strides(node.results[0])[dim];
  Split split = split_at(index, e.extents(node.results[0])[dim], inner);
  size_t i = 0;
  while (split.at >= e.extents(node.operands[i])[dim]) split.at -= e.extents(node.operands[i++])[dim];
  return e.at(node.operands[i], (split.outer * e.extents(node.operands[i])[dim] + split.at) * inner + split.rest);
}

Gradients concat_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  std::vector<ValueId> gradients;
  Dim start(0);
  for (const ValueId operand : in) {
    const Dim end = start + b.shape(operand)[dim_of(node)];
    gradients.push_back(b.slice(g[0], dim_of(node), start, end));
    start = end;
  }
  return b.finish(std::move(gradients));
}

Expected<Types> infer_stack(const OpContext& context) {
  TensorType result{context.operands[0]->dtype, context.operands[0]->shape, {}};
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", result.rank() + 1));
  for (size_t i = 1; i < context.operands.size(); ++i) KILN_RETURN_IF_ERROR(expect_type(context, i, result));
  result.shape.insert(result.shape.begin() + static_cast<ptrdiff_t>(dim),
                      Dim(static_cast<int64_t>(context.operands.size())));
  return Types{std::move(result)};
}

double stack_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const size_t dim = dim_of(node);
  const int64_t inner = e.strides(node.results[0])[dim];
  const Split split = split_at(index, e.extents(node.results[0])[dim], inner);
  return e.at(node.operands[static_cast<size_t>(split.at)], split.outer * inner + split.rest);
}

Gradients decompose_stack(GraphBuilder& b, const Node& node, Values in) {
  std::vector<ValueId> slabs;
  for (const ValueId operand : in) slabs.push_back(b.unsqueeze(operand, dim_of(node)));
  if (!b.status().ok()) return b.status();
  return b.finish(b.ops("concat", slabs, node.attributes));
}

// --- pad ---------------------------------------------------------------------------------------------------------------

Expected<Types> infer_pad(const OpContext& context) {
  TensorType result{context.operands[0]->dtype, context.operands[0]->shape, {}};
  for (const std::string_view side : {"low", "high"}) {
    const std::vector<int64_t>& widths = integers_of(context.attributes, side);
    if (widths.size() != result.rank()) {
      return invalid_argument("pad: attribute '{}' has {} widths, expected {}", side, widths.size(), result.rank());
    }
    for (size_t d = 0; d < widths.size(); ++d) {
      if (widths[d] < 0) return invalid_argument("pad: attribute '{}' has {}, expected 0 or more", side, widths[d]);
      result.shape[d] = result.shape[d] + Dim(widths[d]);
    }
  }
  return Types{std::move(result)};
}

double pad_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const std::vector<int64_t>& low = integers_of(node.attributes, "low");
  int64_t address = 0;
  for (size_t d = 0; d < low.size(); ++d) {
    const int64_t at = coordinate(e, node.results[0], index, d) - low[d];
    if (at < 0 || at >= e.extents(node.operands[0])[d]) return number_of(node.attributes, "value");
    address += at * e.strides(node.operands[0])[d];
  }
  return e.at(node.operands[0], address);
}

Gradients pad_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  const std::vector<int64_t>& low = integers_of(node.attributes, "low");
  const std::vector<int64_t>& high = integers_of(node.attributes, "high");
  const Shape shape = b.shape(in[0]);
  ValueId gradient = g[0];
  for (size_t d = 0; d < low.size(); ++d) {
    if (low[d] != 0 || high[d] != 0) gradient = b.slice(gradient, d, Dim(low[d]), Dim(low[d]) + shape[d]);
  }
  return b.finish({gradient});
}

// --- slice_scatter, select_scatter -------------------------------------------------------------------------------------

Expected<Types> infer_slice_scatter(const OpContext& context) {
  TensorType wanted{context.operands[0]->dtype, context.operands[0]->shape, {}};
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", wanted.rank()));
  KILN_ASSIGN_OR_RETURN(wanted.shape[dim], slice_length(context, Dim(wanted.shape[dim])));
  KILN_RETURN_IF_ERROR(expect_type(context, 1, wanted));
  return infer_same(context);
}

double slice_scatter_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const ValueId x = node.operands[0], source = node.operands[1];
  const size_t dim = dim_of(node);
  const int64_t inner = e.strides(x)[dim], step = integer_of(node.attributes, "step");
  const Split split = split_at(index, e.extents(x)[dim], inner);
  const int64_t offset = split.at - integer_of(node.attributes, "start");
  const int64_t length = e.extents(source)[dim];
  if (offset < 0 || offset % step != 0 || offset / step >= length) return e.at(x, index);
  return e.at(source, (split.outer * length + offset / step) * inner + split.rest);
}

Gradients slice_scatter_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  const ValueId zeros = b.full(b.shape(in[1]), 0, b.dtype(in[1]));
  return b.finish({b.op("slice_scatter", {g[0], zeros}, node.attributes), b.op("slice", {g[0]}, node.attributes)});
}

Expected<Types> infer_select_scatter(const OpContext& context) {
  TensorType wanted{context.operands[0]->dtype, context.operands[0]->shape, {}};
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", wanted.rank()));
  const int64_t index = integer_of(context.attributes, "index");
  const Dim& extent = wanted.shape[dim];
  if (index < 0 || (extent.is_constant() && index >= extent.constant())) {
    return invalid_argument("select_scatter: attribute 'index' is {}, expected one in [0, {})", index,
                            extent.to_string());
  }
  wanted.shape.erase(wanted.shape.begin() + static_cast<ptrdiff_t>(dim));
  KILN_RETURN_IF_ERROR(expect_type(context, 1, wanted));
  return infer_same(context);
}

double select_scatter_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const int64_t inner = e.strides(node.operands[0])[dim_of(node)];
  const Split split = split_at(index, e.extents(node.operands[0])[dim_of(node)], inner);
  if (split.at != integer_of(node.attributes, "index")) return e.at(node.operands[0], index);
  return e.at(node.operands[1], split.outer * inner + split.rest);
}

Gradients decompose_select_scatter(GraphBuilder& b, const Node& node, Values in) {
  const int64_t index = integer_of(node.attributes, "index"), dim = integer_of(node.attributes, "dim");
  const ValueId slab = b.unsqueeze(in[1], dim_of(node));
  return b.finish({b.op("slice_scatter", {in[0], slab}, {{"dim", dim}, {"start", index}, {"end", index + 1}})});
}

// --- tril, triu --------------------------------------------------------------------------------------------------------

Expected<Types> infer_triangle(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_rank_at_least(context, 0, 2));
  return infer_same(context);
}

template <bool lower>
double triangle_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const std::vector<int64_t>& extents = e.extents(node.operands[0]);
  const int64_t columns = extents.back(), rows = extents[extents.size() - 2];
  const int64_t from_diagonal = index % columns - index / columns % rows - integer_of(node.attributes, "diagonal");
  return (lower ? from_diagonal <= 0 : from_diagonal >= 0) ? e.at(node.operands[0], index) : 0;
}

template <bool lower>
Gradients decompose_triangle(GraphBuilder& b, const Node& node, Values in) {
  const Shape shape = b.shape(in[0]);
  const Shape matrix(shape.end() - 2, shape.end());
  const ValueId from_diagonal = b.sub(b.iota(matrix, 1), b.iota(matrix, 0));
  const ValueId keep =
      b.compare(lower ? "le" : "ge", from_diagonal, static_cast<double>(integer_of(node.attributes, "diagonal")));
  return b.finish({b.select(keep, in[0], b.constant(0, in[0]))});
}

// --- cumsum, argsort, topk, argmax, argmin -----------------------------------------------------------------------------

Expected<Types> infer_cumsum(const OpContext& context) {
  if (context.operands[0]->dtype == DType::boolean) return operand_error(context, 0, "a number dtype");
  KILN_RETURN_IF_ERROR(dim_attribute(context, "dim", context.operands[0]->rank()).status());
  return infer_same(context);
}

double cumsum_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const ValueId x = graph.node(id).operands[0];
  const int64_t inner = e.strides(x)[dim_of(graph.node(id))], extent = e.extents(x)[dim_of(graph.node(id))];
  const Split split = split_at(index, extent, inner);
  const int64_t row = split.outer * inner + split.rest;
  const auto sums = e.scratch(id, row, static_cast<size_t>(extent), [&](std::span<double> out) {
    double total = 0;
    for (int64_t i = 0; i < extent; ++i) {
      total += e.at(x, (split.outer * extent + i) * inner + split.rest);
      out[static_cast<size_t>(i)] = total;
    }
  });
  return sums[static_cast<size_t>(split.at)];
}

Gradients cumsum_gradient(GraphBuilder& b, const Node& node, Values, Values, Values g) {
  const Attributes along = {{"dims", std::vector<int64_t>{integer_of(node.attributes, "dim")}}};
  return b.finish({b.op("flip", {b.op("cumsum", {b.op("flip", {g[0]}, along)}, node.attributes)}, along)});
}

Expected<Types> infer_argument(const OpContext& context) {
  const TensorType& x = *context.operands[0];
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", x.rank()));
  if (x.shape[dim] == Dim(0)) return operand_error(context, 0, fmt::format("dim {} not to be empty", dim));
  const int64_t dims[] = {static_cast<int64_t>(dim)};
  return Types{{DType::i64, reduced_shape(x.shape, dims, boolean_of(context.attributes, "keep_dims")), {}}};
}

Expected<Types> infer_argsort(const OpContext& context) {
  KILN_RETURN_IF_ERROR(dim_attribute(context, "dim", context.operands[0]->rank()).status());
  return Types{{DType::i64, context.operands[0]->shape, {}}};
}

Expected<Types> infer_topk(const OpContext& context) {
  const TensorType& x = *context.operands[0];
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", x.rank()));
  const Dim k = extent_of(context.attributes, "k");
  KILN_RETURN_IF_ERROR(expect_range(context, Dim(0), k, x.shape[dim]));
  Types result{{DType::i64, x.shape, {}}};
  result[0].shape[dim] = k;
  return result;
}

std::vector<int64_t> stable_places(int64_t count, const std::function<bool(int64_t, int64_t)>& comes_first) {
  std::vector<int64_t> places(static_cast<size_t>(count));
  std::iota(places.begin(), places.end(), 0);
  std::ranges::stable_sort(places, comes_first);
  return places;
}

double ordering_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const ValueId x = node.operands[0];
  const int64_t inner = e.strides(x)[dim_of(node)], extent = e.extents(x)[dim_of(node)];
  const int64_t told = e.extents(node.results[0])[dim_of(node)];
  const bool descending = boolean_of(node.attributes, "descending");
  const Split split = split_at(index, told, inner);
  const int64_t row = split.outer * inner + split.rest;
  const auto order = e.scratch(id, row, static_cast<size_t>(told), [&](std::span<double> out) {
    std::vector<double> elements(static_cast<size_t>(extent));
    for (int64_t i = 0; i < extent; ++i) {
      elements[static_cast<size_t>(i)] = e.at(x, (split.outer * extent + i) * inner + split.rest);
    }
    const auto comes_first = [&](int64_t a, int64_t b) {
      if (descending) std::swap(a, b);
      const double below = elements[static_cast<size_t>(a)], above = elements[static_cast<size_t>(b)];
      return std::isnan(above) ? !std::isnan(below) : below < above;
    };
    std::ranges::copy(has_attribute(node.attributes, "k")
                          ? topk_places(extent, told, boolean_of(node.attributes, "sorted"), comes_first)
                          : stable_places(extent, comes_first),
                      out.begin());
  });
  return order[static_cast<size_t>(split.at)];
}

template <bool largest>
double argument_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const ValueId x = graph.node(id).operands[0];
  const int64_t inner = e.strides(x)[dim_of(graph.node(id))], extent = e.extents(x)[dim_of(graph.node(id))];
  const int64_t base = index / inner * inner * extent + index % inner;
  int64_t best_at = 0;
  double best = e.at(x, base);
  for (int64_t i = 1; i < extent && !std::isnan(best); ++i) {
    const double value = e.at(x, base + i * inner);
    if (std::isnan(value) || (largest ? value > best : value < best)) {
      best = value;
      best_at = i;
    }
  }
  return static_cast<double>(best_at);
}

}  // namespace

std::span<const OpDef> arranging_ops() {
  static const AttributeDef dim = required("dim", AttributeType::integer);
  const auto triangle = [](std::string_view name, decltype(OpDef::element) element,
                           decltype(OpDef::decompose) decompose) {
    return OpDef{.name = name,
                 .kind = OpKind::composite,
                 .operands = {{"x"}},
                 .attributes = {fallback("diagonal", AttributeType::integer, int64_t{0})},
                 .infer = infer_triangle,
                 .element = element,
                 .decompose = decompose};
  };
  const auto argument = [](std::string_view name, decltype(OpDef::element) element) {
    return OpDef{.name = name,
                 .kind = OpKind::indexing,
                 .operands = {{"x"}},
                 .attributes = {dim, fallback("keep_dims", AttributeType::boolean, false)},
                 .infer = infer_argument,
                 .element = element};
  };
  static const std::vector<OpDef> rows = {
      {.name = "concat",
       .kind = OpKind::indexing,
       .operands = {{"xs", OperandKind::variadic}},
       .attributes = {dim},
       .infer = infer_concat,
       .element = concat_element,
       .gradient = concat_gradient},
      {.name = "pad",
       .kind = OpKind::indexing,
       .operands = {{"x"}},
       .attributes = {required("low", AttributeType::integers), required("high", AttributeType::integers),
                      fallback("value", AttributeType::number, 0.0)},
       .infer = infer_pad,
       .element = pad_element,
       .gradient = pad_gradient},
      {.name = "slice_scatter",
       .kind = OpKind::indexing,
       .operands = {{"x"}, {"source"}},
       .attributes = slice_attributes(),
       .infer = infer_slice_scatter,
       .element = slice_scatter_element,
       .gradient = slice_scatter_gradient},
      {.name = "cumsum",
       .kind = OpKind::indexing,
       .operands = {{"x"}},
       .attributes = {dim},
       .infer = infer_cumsum,
       .element = cumsum_element,
       .gradient = cumsum_gradient},
      argument("argmax", argument_element<true>),
      argument("argmin", argument_element<false>),
      {.name = "argsort",
       .kind = OpKind::ordering,
       .operands = {{"x"}},
       .attributes = {dim, fallback("descending", AttributeType::boolean, false)},
       .infer = infer_argsort,
       .element = ordering_element},
      {.name = "topk",
       .kind = OpKind::ordering,
       .operands = {{"x"}},
       .attributes = {dim, required("k", AttributeType::extent), fallback("descending", AttributeType::boolean, true),
                      fallback("sorted", AttributeType::boolean, true)},
       .infer = infer_topk,
       .element = ordering_element},
      {.name = "stack",
       .kind = OpKind::composite,
       .operands = {{"xs", OperandKind::variadic}},
       .attributes = {dim},
       .infer = infer_stack,
       .element = stack_element,
       .decompose = decompose_stack},
      {.name = "select_scatter",
       .kind = OpKind::composite,
       .operands = {{"x"}, {"source"}},
       .attributes = {dim, required("index", AttributeType::integer)},
       .infer = infer_select_scatter,
       .element = select_scatter_element,
       .decompose = decompose_select_scatter},
      triangle("tril", triangle_element<true>, decompose_triangle<true>),
      triangle("triu", triangle_element<false>, decompose_triangle<false>),
  };
  return rows;
}

}  // namespace kiln
