// Normalisations. "rows" are what one mean or root mean square is taken over: the last `normalized_rank` dims.

#include <cmath>
#include <set>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/rules.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

// --- shapes ------------------------------------------------------------------------------------------------------------

Expected<size_t> normalized_rank(const OpContext& context, size_t rank) {
  const int64_t normalized = integer_of(context.attributes, "normalized_rank");
  if (normalized >= 1 && normalized <= static_cast<int64_t>(rank)) return static_cast<size_t>(normalized);
  return invalid_argument("{}: attribute 'normalized_rank' is {}, expected one in [1, {}]", context.op.name, normalized,
                          rank);
}

size_t normalized_rank(const Node& node) { return static_cast<size_t>(integer_of(node.attributes, "normalized_rank")); }

Shape row_shape(const Shape& shape, size_t normalized) {
  return Shape(shape.end() - static_cast<ptrdiff_t>(normalized), shape.end());
}

Shape statistics_shape(Shape shape, size_t normalized) {
  for (size_t d = shape.size() - normalized; d < shape.size(); ++d) shape[d] = Dim(1);
  return shape;
}

std::vector<int64_t> row_dims(size_t rank, size_t normalized) {
  std::vector<int64_t> dims;
  for (size_t d = rank - normalized; d < rank; ++d) dims.push_back(static_cast<int64_t>(d));
  return dims;
}

std::vector<int64_t> outer_dims(size_t rank, size_t normalized) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < rank - normalized; ++d) dims.push_back(static_cast<int64_t>(d));
  return dims;
}

/// Optional operands `first` and later: x's dtype, `shape`.
Status expect_parameters(const OpContext& context, size_t first, size_t count, const Shape& shape) {
  for (size_t i = first; i < first + count; ++i) {
    if (context.operands[i] == nullptr) continue;
    KILN_RETURN_IF_ERROR(expect_type(context, i, {context.operands[0]->dtype, shape, {}}));
  }
  return {};
}

double parameter(ElementEvaluator& e, ValueId value, int64_t index, double otherwise) {
  return value == k_none ? otherwise : e.at(value, index);
}

// --- layer_norm --------------------------------------------------------------------------------------------------------

struct Moments {
  double mean, rstd;
};

/// Mean and rstd of `count` consecutive elements from `row * count` on.
Moments moments(ElementEvaluator& e, const Node& node, NodeId id, int64_t row, int64_t count) {
  const auto numbers = e.scratch(id, row, 2, [&](std::span<double> out) {
    const ValueId x = node.operands[0];
    for (int64_t i = 0; i < count; ++i) out[0] += e.at(x, row * count + i);
    out[0] /= static_cast<double>(count);
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double centred = e.at(x, row * count + i) - out[0];
      squares += centred * centred;
    }
    out[1] = 1 / std::sqrt(squares / static_cast<double>(count) + number_of(node.attributes, "eps"));
  });
  return {numbers[0], numbers[1]};
}

int64_t row_length(const ElementEvaluator& e, ValueId x, size_t normalized) {
  int64_t length = 1;
  const std::vector<int64_t>& extents = e.extents(x);
  for (size_t d = extents.size() - normalized; d < extents.size(); ++d) length *= extents[d];
  return length;
}

/// Elements of a norm's first result, or of its gradient's: what their rows need of the first `operands` operands is computed
/// together.
template <auto element, size_t operands>
void in_rows(ElementEvaluator& e, const Graph& graph, NodeId id, std::span<const int64_t> indices,
             std::span<double> out) {
  const Node& node = graph.node(id);
  const int64_t count = row_length(e, node.operands[0], normalized_rank(node));
  std::set<int64_t> unique;
  for (const int64_t index : indices) unique.insert(index / count);
  const std::vector<int64_t> rows(unique.begin(), unique.end());
  for (const ValueId operand : std::span(node.operands).first(operands)) {
    e.prepare(operand, static_cast<int64_t>(rows.size()) * count,
              [&](int64_t i) { return rows[static_cast<size_t>(i / count)] * count + i % count; });
  }
  for (size_t i = 0; i < indices.size(); ++i) out[i] = element(e, graph, id, 0, indices[i]);
}

Expected<Types> infer_layer_norm(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 0));
  const TensorType& x = *context.operands[0];
  KILN_ASSIGN_OR_RETURN(const size_t normalized, normalized_rank(context, x.rank()));
  KILN_RETURN_IF_ERROR(expect_parameters(context, 1, 2, row_shape(x.shape, normalized)));
  const TensorType statistics{accumulator_of(x.dtype), statistics_shape(x.shape, normalized), {}};
  return Types{{x.dtype, x.shape, {}}, statistics, statistics};
}

double layer_norm_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t result, int64_t index) {
  const Node& node = graph.node(id);
  const int64_t count = row_length(e, node.operands[0], normalized_rank(node));
  const Moments row = moments(e, node, id, result == 0 ? index / count : index, count);
  if (result == 1) return row.mean;
  if (result == 2) return row.rstd;
  const double normal = (e.at(node.operands[0], index) - row.mean) * row.rstd;
  return normal * parameter(e, node.operands[1], index % count, 1) + parameter(e, node.operands[2], index % count, 0);
}

ValueId scale_and_shift(GraphBuilder& b, ValueId normal, ValueId weight, ValueId bias) {
  if (weight != k_none) normal = b.mul(normal, b.widen(weight));
  if (bias != k_none) normal = b.add(normal, b.widen(bias));
  return normal;
}

/// x centred, and the reciprocal of its standard deviation, over `dims`.
struct Standardised {
  ValueId centred, mean, rstd;
};

Standardised standardise(GraphBuilder& b, ValueId x, const std::vector<int64_t>& dims, double eps) {
  const ValueId mean = b.mean(x, dims, true);
  const ValueId centred = b.sub(x, mean);
  const ValueId variance = b.mean(b.square(centred), dims, true);
  return {centred, mean, b.op("rsqrt", {b.add(variance, eps)})};
}

Gradients decompose_layer_norm(GraphBuilder& b, const Node& node, Values in) {
  const std::vector<int64_t> dims = row_dims(b.shape(in[0]).size(), normalized_rank(node));
  const Standardised x = standardise(b, b.widen(in[0]), dims, number_of(node.attributes, "eps"));
  const ValueId out = scale_and_shift(b, b.mul(x.centred, x.rstd), in[1], in[2]);
  return b.finish({b.cast(out, b.dtype(in[0])), x.mean, x.rstd});
}

ValueId add_present(GraphBuilder& b, ValueId a, ValueId c) { return a == k_none ? c : c == k_none ? a : b.add(a, c); }

/// The gradient through `out` is the backward op's. Where mean and rstd are read too (by a second derivative),
/// d mean = 1 / N and d rstd = -rstd^3 (x - mean) / N.
Gradients layer_norm_gradient(GraphBuilder& b, const Node& node, Values in, Values out, Values g) {
  const size_t normalized = normalized_rank(node);
  std::vector<ValueId> gradients(3, k_none);
  if (g[0] != k_none) {
    const ValueId operands[] = {g[0], in[0], out[1], out[2], in[1]};
    gradients = b.ops("layer_norm_backward", operands, {{"normalized_rank", static_cast<int64_t>(normalized)}});
  }
  ValueId statistics = g[1];
  if (g[2] != k_none) {
    const ValueId slope = b.neg(b.mul(g[2], b.mul(b.square(out[2]), out[2])));
    statistics = add_present(b, statistics, b.mul(slope, b.sub(b.widen(in[0]), out[1])));
  }
  if (statistics != k_none) {
    const ValueId count = b.extent(element_count(row_shape(Shape(b.shape(in[0])), normalized)), b.dtype(out[1]));
    const ValueId spread = b.expand(b.div(statistics, count), Shape(b.shape(in[0])));
    gradients[0] = add_present(b, gradients[0], b.cast(spread, b.dtype(in[0])));
  }
  if (in[1] == k_none) gradients[1] = k_none;
  if (in[2] == k_none) gradients[2] = k_none;
  return b.finish(std::move(gradients));
}

// --- layer_norm_backward: grad, x, mean, rstd, weight? -------------------------------------------------------------------

Expected<Types> infer_layer_norm_backward(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 1));
  const TensorType& x = *context.operands[1];
  KILN_ASSIGN_OR_RETURN(const size_t normalized, normalized_rank(context, x.rank()));
  KILN_RETURN_IF_ERROR(expect_type(context, 0, {x.dtype, x.shape, {}}));
  const TensorType statistics{accumulator_of(x.dtype), statistics_shape(x.shape, normalized), {}};
  KILN_RETURN_IF_ERROR(expect_type(context, 2, statistics));
  KILN_RETURN_IF_ERROR(expect_type(context, 3, statistics));
  const TensorType parameters{x.dtype, row_shape(x.shape, normalized), {}};
  KILN_RETURN_IF_ERROR(expect_parameters(context, 4, 1, parameters.shape));
  return Types{{x.dtype, x.shape, {}}, parameters, parameters};
}

double layer_norm_backward_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t result, int64_t index) {
  const Node& node = graph.node(id);
  const ValueId grad = node.operands[0], x = node.operands[1], mean = node.operands[2], rstd = node.operands[3];
  const int64_t count = row_length(e, x, normalized_rank(node));
  const auto normal_at = [&](int64_t i) { return (e.at(x, i) - e.at(mean, i / count)) * e.at(rstd, i / count); };
  if (result != 0) {
    for (const ValueId operand : {grad, x}) {
      e.prepare(operand, e.elements(x) / count, [&](int64_t i) { return index + i * count; });
    }
    double total = 0;
    for (int64_t i = index; i < e.elements(x); i += count) total += e.at(grad, i) * (result == 1 ? normal_at(i) : 1);
    return total;
  }
  const auto weighted_at = [&](int64_t i) { return e.at(grad, i) * parameter(e, node.operands[4], i % count, 1); };
  const int64_t row = index / count;
  const auto means = e.scratch(id, row, 2, [&](std::span<double> out) {
    for (int64_t i = row * count; i < (row + 1) * count; ++i) {
      out[0] += weighted_at(i) / static_cast<double>(count);
      out[1] += weighted_at(i) * normal_at(i) / static_cast<double>(count);
    }
  });
  return (weighted_at(index) - means[0] - normal_at(index) * means[1]) * e.at(rstd, row);
}

Gradients decompose_layer_norm_backward(GraphBuilder& b, const Node& node, Values in) {
  const size_t rank = b.shape(in[1]).size(), normalized = normalized_rank(node);
  const DType dtype = b.dtype(in[1]);
  const std::vector<int64_t> inner = row_dims(rank, normalized), outer = outer_dims(rank, normalized);
  const ValueId grad = b.widen(in[0]);
  const ValueId normal = b.mul(b.sub(b.widen(in[1]), in[2]), in[3]);
  const ValueId weighted = in[4] == k_none ? grad : b.mul(grad, b.widen(in[4]));
  const ValueId mean = b.mean(weighted, inner, true);
  const ValueId projection = b.mul(normal, b.mean(b.mul(weighted, normal), inner, true));
  const ValueId dx = b.mul(b.sub(b.sub(weighted, mean), projection), in[3]);
  return b.finish(
      {b.cast(dx, dtype), b.cast(b.sum(b.mul(grad, normal), outer), dtype), b.cast(b.sum(grad, outer), dtype)});
}

// --- rms_norm ----------------------------------------------------------------------------------------------------------

Expected<Types> infer_rms_norm(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 0));
  const TensorType& x = *context.operands[0];
  KILN_ASSIGN_OR_RETURN(const size_t normalized, normalized_rank(context, x.rank()));
  KILN_RETURN_IF_ERROR(expect_parameters(context, 1, 1, row_shape(x.shape, normalized)));
  return Types{{x.dtype, x.shape, {}}, {accumulator_of(x.dtype), statistics_shape(x.shape, normalized), {}}};
}

double rms_norm_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t result, int64_t index) {
  const Node& node = graph.node(id);
  const int64_t count = row_length(e, node.operands[0], normalized_rank(node));
  const int64_t row = result == 0 ? index / count : index;
  const double rstd = e.scratch(id, row, 1, [&](std::span<double> out) {
    for (int64_t i = row * count; i < (row + 1) * count; ++i)
      out[0] += e.at(node.operands[0], i) * e.at(node.operands[0], i);
    out[0] = 1 / std::sqrt(out[0] / static_cast<double>(count) + number_of(node.attributes, "eps"));
  })[0];
  if (result == 1) return rstd;
  return e.at(node.operands[0], index) * rstd * parameter(e, node.operands[1], index % count, 1);
}

Gradients decompose_rms_norm(GraphBuilder& b, const Node& node, Values in) {
  const ValueId x = b.widen(in[0]);
  const ValueId power = b.mean(b.square(x), row_dims(b.shape(in[0]).size(), normalized_rank(node)), true);
  const ValueId rstd = b.op("rsqrt", {b.add(power, number_of(node.attributes, "eps"))});
  return b.finish({b.cast(scale_and_shift(b, b.mul(x, rstd), in[1], k_none), b.dtype(in[0])), rstd});
}

// --- batch_norm (inference), group_norm: channels in dim 1 ---------------------------------------------------------------

/// A vector over channels, shaped to broadcast against x.
ValueId per_channel(GraphBuilder& b, ValueId vector, size_t rank) {
  if (vector == k_none || !b.status().ok()) return vector;
  Shape shape(rank, Dim(1));
  shape[1] = b.shape(vector)[0];
  return b.widen(b.reshape(vector, std::move(shape)));
}

Expected<Types> infer_batch_norm(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 0));
  KILN_RETURN_IF_ERROR(expect_rank_at_least(context, 0, 2));
  KILN_RETURN_IF_ERROR(expect_parameters(context, 1, 4, {context.operands[0]->shape[1]}));
  return infer_same(context);
}

double batch_norm_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const int64_t channel = coordinate(e, node.operands[0], index, 1);
  const double rstd = 1 / std::sqrt(e.at(node.operands[4], channel) + number_of(node.attributes, "eps"));
  const double normal = (e.at(node.operands[0], index) - e.at(node.operands[3], channel)) * rstd;
  return normal * parameter(e, node.operands[1], channel, 1) + parameter(e, node.operands[2], channel, 0);
}

Gradients decompose_batch_norm(GraphBuilder& b, const Node& node, Values in) {
  const size_t rank = b.shape(in[0]).size();
  const auto channel = [&](size_t i) { return per_channel(b, in[i], rank); };
  const ValueId rstd = b.op("rsqrt", {b.add(channel(4), number_of(node.attributes, "eps"))});
  const ValueId normal = b.mul(b.sub(b.widen(in[0]), channel(3)), rstd);
  return b.finish({b.cast(scale_and_shift(b, normal, channel(1), channel(2)), b.dtype(in[0]))});
}

Expected<Types> infer_group_norm(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 0));
  KILN_RETURN_IF_ERROR(expect_rank_at_least(context, 0, 2));
  const TensorType& x = *context.operands[0];
  const int64_t groups = integer_of(context.attributes, "groups");
  if (groups < 1 || !x.shape[1].divided_by(Dim(groups))) {
    return invalid_argument("group_norm: attribute 'groups' is {}, expected a divisor of {} channels", groups,
                            x.shape[1].to_string());
  }
  KILN_RETURN_IF_ERROR(expect_parameters(context, 1, 2, {x.shape[1]}));
  const TensorType statistics{accumulator_of(x.dtype), {x.shape[0], Dim(groups)}, {}};
  return Types{{x.dtype, x.shape, {}}, statistics, statistics};
}

double group_norm_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t result, int64_t index) {
  const Node& node = graph.node(id);
  const ValueId x = node.operands[0];
  const int64_t count = e.strides(x)[0] / integer_of(node.attributes, "groups");
  const Moments group = moments(e, node, id, result == 0 ? index / count : index, count);
  if (result == 1) return group.mean;
  if (result == 2) return group.rstd;
  const int64_t channel = coordinate(e, x, index, 1);
  return (e.at(x, index) - group.mean) * group.rstd * parameter(e, node.operands[1], channel, 1) +
         parameter(e, node.operands[2], channel, 0);
}

Gradients decompose_group_norm(GraphBuilder& b, const Node& node, Values in) {
  const Shape shape = b.shape(in[0]);
  const int64_t groups = integer_of(node.attributes, "groups");
  Dim count = *shape[1].divided_by(Dim(groups));
  for (size_t d = 2; d < shape.size(); ++d) count = count * shape[d];
  const ValueId grouped = b.reshape(b.widen(in[0]), {shape[0], Dim(groups), count});
  const Standardised x = standardise(b, grouped, {2}, number_of(node.attributes, "eps"));
  const ValueId normal = b.reshape(b.mul(x.centred, x.rstd), shape);
  const ValueId out =
      scale_and_shift(b, normal, per_channel(b, in[1], shape.size()), per_channel(b, in[2], shape.size()));
  return b.finish({b.cast(out, b.dtype(in[0])), b.squeeze(x.mean, 2), b.squeeze(x.rstd, 2)});
}

}  // namespace

std::span<const OpDef> normalisation_ops() {
  static const AttributeDef eps = required("eps", AttributeType::number);
  static const AttributeDef rank = required("normalized_rank", AttributeType::integer);
  static const OperandDef weight = {"weight", OperandKind::optional}, bias = {"bias", OperandKind::optional};
  static const std::vector<OpDef> rows = {
      {.name = "layer_norm",
       .kind = OpKind::composite,
       .operands = {{"x"}, weight, bias},
       .attributes = {rank, eps},
       .result_count = 3,
       .infer = infer_layer_norm,
       .element = layer_norm_element,
       .elements = in_rows<layer_norm_element, 1>,
       .decompose = decompose_layer_norm,
       .gradient = layer_norm_gradient},
      {.name = "layer_norm_backward",
       .kind = OpKind::composite,
       .operands = {{"grad"}, {"x"}, {"mean"}, {"rstd"}, weight},
       .attributes = {rank},
       .result_count = 3,
       .infer = infer_layer_norm_backward,
       .element = layer_norm_backward_element,
       .elements = in_rows<layer_norm_backward_element, 2>,
       .decompose = decompose_layer_norm_backward},
      {.name = "rms_norm",
       .kind = OpKind::composite,
       .operands = {{"x"}, weight},
       .attributes = {rank, eps},
       .result_count = 2,
       .infer = infer_rms_norm,
       .element = rms_norm_element,
       .elements = in_rows<rms_norm_element, 1>,
       .decompose = decompose_rms_norm},
      {.name = "batch_norm",
       .kind = OpKind::composite,
       .operands = {{"x"}, weight, bias, {"mean"}, {"var"}},
       .attributes = {eps},
       .infer = infer_batch_norm,
       .element = batch_norm_element,
       .decompose = decompose_batch_norm},
      {.name = "group_norm",
       .kind = OpKind::composite,
       .operands = {{"x"}, weight, bias},
       .attributes = {required("groups", AttributeType::integer), eps},
       .result_count = 3,
       .infer = infer_group_norm,
       .element = group_norm_element,
       .decompose = decompose_group_norm},
  };
  return rows;
}

}  // namespace kiln
