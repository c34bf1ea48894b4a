// Losses, with torch's reductions: "mean" of nll_loss divides by the number of targets that count.

#include <cmath>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/rules.h"
#include "frontend/ops/scalar_math.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

const std::string& reduction_of(const Node& node) { return string_of(node.attributes, "reduction"); }

Status check_reduction(const OpContext& context) {
  const std::string& reduction = string_of(context.attributes, "reduction");
  if (reduction == "mean" || reduction == "sum" || reduction == "none") return {};
  return invalid_argument("{}: attribute 'reduction' is '{}', expected 'mean', 'sum' or 'none'", context.op.name,
                          reduction.substr(0, 32));
}

Shape loss_shape(const OpContext& context, const Shape& unreduced) {
  return string_of(context.attributes, "reduction") == "none" ? unreduced : Shape{};
}

// --- nll_loss: log_probs (N, C) or (C), target (N) or () -----------------------------------------------------------------

Status check_classes(const OpContext& context, size_t scores, size_t target) {
  KILN_RETURN_IF_ERROR(check_reduction(context));
  KILN_RETURN_IF_ERROR(expect_floating(context, scores));
  KILN_RETURN_IF_ERROR(expect_index(context, target));
  const Shape& shape = context.operands[scores]->shape;
  if (shape.empty() || shape.size() > 2) return operand_error(context, scores, "rank 1 or 2");
  return expect_shape(context, target, Shape(shape.begin(), shape.end() - 1));
}

Expected<Types> infer_nll_loss(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_classes(context, 0, 1));
  const DType dtype = context.operands[0]->dtype;
  return Types{{dtype, loss_shape(context, context.operands[1]->shape), {}}, {dtype, {}, {}}};
}

Expected<Types> infer_cross_entropy(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_classes(context, 0, 1));
  return Types{{context.operands[0]->dtype, loss_shape(context, context.operands[1]->shape), {}}};
}

/// One sample's -score[target], 0 where ignored; `score` maps a flat index of operand 0 to its log probability.
template <typename Score>
double sample_loss(ElementEvaluator& e, const Node& node, NodeId id, int64_t sample, Score&& score) {
  const double target = e.at(node.operands[1], sample);
  if (target == static_cast<double>(integer_of(node.attributes, "ignore_index"))) return 0;
  const int64_t classes = e.extents(node.operands[0]).back();
  const auto at = e.checked_index(id, target, classes);
  return at ? -score(sample * classes + *at) : k_nan;
}

double counted_targets(ElementEvaluator& e, const Node& node) {
  double count = 0;
  for (int64_t i = 0; i < e.elements(node.operands[1]); ++i) {
    count += e.at(node.operands[1], i) != static_cast<double>(integer_of(node.attributes, "ignore_index")) ? 1 : 0;
  }
  return count;
}

template <typename Score>
double reduced_loss(ElementEvaluator& e, const Node& node, NodeId id, int64_t index, Score&& score) {
  if (reduction_of(node) == "none") return sample_loss(e, node, id, index, score);
  double total = 0;
  for (int64_t i = 0; i < e.elements(node.operands[1]); ++i) total += sample_loss(e, node, id, i, score);
  return reduction_of(node) == "mean" ? total / counted_targets(e, node) : total;
}

double nll_loss_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t result, int64_t index) {
  const Node& node = graph.node(id);
  if (result == 1) return reduction_of(node) == "none" ? 0 : counted_targets(e, node);
  return reduced_loss(e, node, id, index, [&](int64_t i) { return e.at(node.operands[0], i); });
}

double cross_entropy_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const int64_t classes = e.extents(node.operands[0]).back();
  return reduced_loss(e, node, id, index, [&](int64_t at) {
    const int64_t row = at / classes * classes;
    double largest = e.at(node.operands[0], row), sum = 0;
    for (int64_t c = 1; c < classes; ++c) largest = std::fmax(largest, e.at(node.operands[0], row + c));
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(e.at(node.operands[0], row + c) - largest);
    return e.at(node.operands[0], at) - largest - std::log(sum);
  });
}

struct Targets {
  ValueId kept, safe;  // which samples count; their class, 0 for the others
};

Targets build_targets(GraphBuilder& b, const Node& node, ValueId target) {
  const ValueId kept = b.compare("ne", target, static_cast<double>(integer_of(node.attributes, "ignore_index")));
  return {kept, b.select(kept, target, b.constant(0, target))};
}

std::vector<int64_t> all_dims(GraphBuilder& b, ValueId x) {
  std::vector<int64_t> dims;
  for (size_t d = 0; b.status().ok() && d < b.shape(x).size(); ++d) dims.push_back(static_cast<int64_t>(d));
  return dims;
}

Gradients decompose_nll_loss(GraphBuilder& b, const Node& node, Values in) {
  const DType dtype = b.dtype(in[0]);
  const size_t classes_dim = b.shape(in[0]).size() - 1;
  const ValueId log_probs = b.widen(in[0]);
  const Targets targets = build_targets(b, node, in[1]);
  const ValueId picked =
      b.op("gather", {log_probs, b.unsqueeze(targets.safe, classes_dim)}, {{"dim", static_cast<int64_t>(classes_dim)}});
  const ValueId losses = b.select(targets.kept, b.neg(b.squeeze(picked, classes_dim)), b.constant(0, log_probs));
  if (reduction_of(node) == "none") return b.finish({b.cast(losses, dtype), b.full(0, dtype)});
  const ValueId total = b.sum(losses, all_dims(b, losses));
  const ValueId count = b.sum(b.cast(targets.kept, accumulator_of(dtype)), all_dims(b, losses));
  const ValueId loss = reduction_of(node) == "mean" ? b.div(total, count) : total;
  return b.finish({b.cast(loss, dtype), b.cast(count, dtype)});
}

Gradients nll_loss_gradient(GraphBuilder& b, const Node& node, Values in, Values out, Values g) {
  if (g[0] == k_none) return std::vector<ValueId>{k_none, k_none};
  return b.finish({b.op("nll_loss_backward", {g[0], in[0], in[1], out[1]}, node.attributes), k_none});
}

Expected<Types> infer_nll_loss_backward(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_classes(context, 1, 2));
  const TensorType& log_probs = *context.operands[1];
  KILN_RETURN_IF_ERROR(expect_type(context, 0, {log_probs.dtype, loss_shape(context, context.operands[2]->shape), {}}));
  KILN_RETURN_IF_ERROR(expect_type(context, 3, {log_probs.dtype, {}, {}}));
  return Types{{log_probs.dtype, log_probs.shape, {}}};
}

double nll_loss_backward_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const int64_t classes = e.extents(node.operands[1]).back();
  const double target = e.at(node.operands[2], index / classes);
  if (target == static_cast<double>(integer_of(node.attributes, "ignore_index"))) return 0;
  if (std::isnan(target)) return k_nan;
  if (e.checked_index(id, target, classes) != index % classes) return 0;
  const double grad = e.at(node.operands[0], reduction_of(node) == "none" ? index / classes : 0);
  return reduction_of(node) == "mean" ? -grad / e.at(node.operands[3], 0) : -grad;
}

Gradients decompose_nll_loss_backward(GraphBuilder& b, const Node& node, Values in) {
  const Shape shape = b.shape(in[1]);
  const size_t classes_dim = shape.size() - 1;
  const Targets targets = build_targets(b, node, in[2]);
  ValueId grad = b.neg(b.widen(in[0]));
  if (reduction_of(node) == "mean") grad = b.div(grad, b.widen(in[3]));
  grad = b.select(targets.kept, grad, b.constant(0, grad));  // one per sample
  // A compare with the class number instead of a scatter: it fuses with what follows.
  const ValueId hit = b.op("eq", {b.iota(shape, classes_dim, b.dtype(in[2])), b.unsqueeze(targets.safe, classes_dim)});
  const ValueId spread = b.select(hit, b.unsqueeze(grad, classes_dim), b.constant(0, grad));
  return b.finish({b.cast(spread, b.dtype(in[1]))});
}

Gradients decompose_cross_entropy(GraphBuilder& b, const Node& node, Values in) {
  const auto classes_dim = static_cast<int64_t>(b.shape(in[0]).size()) - 1;
  const ValueId log_probs = b.op("log_softmax", {in[0]}, {{"dim", classes_dim}});
  return b.finish({b.op("nll_loss", {log_probs, in[1]}, node.attributes)});
}

// --- mse_loss ----------------------------------------------------------------------------------------------------------

Expected<Types> infer_mse_loss(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_reduction(context));
  KILN_RETURN_IF_ERROR(infer_same_floating(context).status());
  return Types{{context.operands[0]->dtype, loss_shape(context, context.operands[0]->shape), {}}};
}

double mse_loss_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const auto square_at = [&](int64_t i) {
    const double difference = e.at(node.operands[0], i) - e.at(node.operands[1], i);
    return difference * difference;
  };
  if (reduction_of(node) == "none") return square_at(index);
  const int64_t count = e.elements(node.operands[0]);
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += square_at(i);
  return reduction_of(node) == "mean" ? total / static_cast<double>(count) : total;
}

Gradients decompose_mse_loss(GraphBuilder& b, const Node& node, Values in) {
  const ValueId squares = b.square(b.sub(b.widen(in[0]), b.widen(in[1])));
  ValueId loss = squares;
  if (reduction_of(node) == "sum") loss = b.sum(squares, all_dims(b, squares));
  if (reduction_of(node) == "mean") loss = b.mean(squares, all_dims(b, squares));
  return b.finish({b.cast(loss, b.dtype(in[0]))});
}

}  // namespace

std::span<const OpDef> loss_ops() {
  static const AttributeDef reduction = fallback("reduction", AttributeType::string, std::string("mean"));
  static const AttributeDef ignore = fallback("ignore_index", AttributeType::integer, int64_t{-100});
  static const std::vector<OpDef> rows = {
      {.name = "nll_loss",
       .kind = OpKind::composite,
       .operands = {{"log_probs"}, {"target"}},
       .attributes = {reduction, ignore},
       .result_count = 2,
       .infer = infer_nll_loss,
       .element = nll_loss_element,
       .decompose = decompose_nll_loss,
       .gradient = nll_loss_gradient},
      {.name = "nll_loss_backward",
       .kind = OpKind::composite,
       .operands = {{"grad"}, {"log_probs"}, {"target"}, {"total_weight"}},
       .attributes = {reduction, ignore},
       .infer = infer_nll_loss_backward,
       .element = nll_loss_backward_element,
       .decompose = decompose_nll_loss_backward},
      {.name = "cross_entropy",
       .kind = OpKind::composite,
       .operands = {{"logits"}, {"target"}},
       .attributes = {reduction, ignore},
       .infer = infer_cross_entropy,
       .element = cross_entropy_element,
       .decompose = decompose_cross_entropy},
      {.name = "mse_loss",
       .kind = OpKind::composite,
       .operands = {{"a"}, {"b"}},
       .attributes = {reduction},
       .infer = infer_mse_loss,
       .element = mse_loss_element,
       .decompose = decompose_mse_loss},
  };
  return rows;
}

}  // namespace kiln
