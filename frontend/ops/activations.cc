// Composites of scalar operations. Half precisions are computed in f32 and rounded once, at the end.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/rules.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

constexpr double k_sqrt_half = 1 / std::numbers::sqrt2;
constexpr double k_inv_sqrt_2pi = k_sqrt_half * std::numbers::inv_sqrtpi;
constexpr double k_tanh_cubic = 0.044715;  // Hendrycks and Gimpel, arXiv 1606.08415
constexpr double k_tanh_scale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;

// --- reference: f(x) or f(grad, x), with the node for its attributes -----------------------------------------------------

template <double (*f)(const Node&, double x)>
double unary_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  return f(graph.node(id), e.at(graph.node(id).operands[0], index));
}

template <double (*f)(const Node&, double grad, double x)>
double backward_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  return f(node, e.at(node.operands[0], index), e.at(node.operands[1], index));
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double log_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::fabs(x))); }
bool is_tanh(const Node& node) { return string_of(node.attributes, "approximate") == "tanh"; }

double relu(const Node&, double x) { return x < 0 ? 0 : x; }  // keeps NaN
double relu_backward(const Node&, double grad, double x) { return x <= 0 ? 0 : grad; }
double silu(const Node&, double x) { return x * sigmoid(x); }
double silu_backward(const Node&, double grad, double x) {
  const double s = sigmoid(x);
  return grad * s * (1 + x * (1 - s));
}
double tanh_backward(const Node&, double grad, double out) { return grad * (1 - out * out); }
double sigmoid_backward(const Node&, double grad, double out) { return grad * out * (1 - out); }

double gelu(const Node& node, double x) {
  if (!is_tanh(node)) return 0.5 * x * (1 + std::erf(x * k_sqrt_half));
  return 0.5 * x * (1 + std::tanh(k_tanh_scale * (x + k_tanh_cubic * x * x * x)));
}

double gelu_backward(const Node& node, double grad, double x) {
  if (!is_tanh(node)) {
    const double cdf = 0.5 * (1 + std::erf(x * k_sqrt_half));
    return grad * (cdf + x * k_inv_sqrt_2pi * std::exp(-0.5 * x * x));
  }
  const double t = std::tanh(k_tanh_scale * (x + k_tanh_cubic * x * x * x));
  const double inner = k_tanh_scale * (1 + 3 * k_tanh_cubic * x * x);
  return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner);
}

double softplus(const Node& node, double x) {
  const double beta = number_of(node.attributes, "beta");
  return x * beta > number_of(node.attributes, "threshold") ? x : std::log1p(std::exp(x * beta)) / beta;
}

double elu(const Node& node, double x) { return x > 0 ? x : number_of(node.attributes, "alpha") * std::expm1(x); }
double leaky_relu(const Node& node, double x) { return x > 0 ? x : number_of(node.attributes, "slope") * x; }
double hard_sigmoid(const Node&, double x) { return std::isnan(x) ? x : std::clamp(x + 3, 0.0, 6.0) / 6; }
double hard_swish(const Node& node, double x) { return x * hard_sigmoid(node, x); }
double log_sigmoid_of(const Node&, double x) { return log_sigmoid(x); }
double mish(const Node&, double x) { return x * std::tanh(-log_sigmoid(-x)); }
/// x to the exponent as torch has it, where a power of a half is a root: NaN for -inf, and -0 stays.
double pow_scalar(const Node& node, double x) {
  const double exponent = number_of(node.attributes, "exponent");
  if (std::fabs(exponent) != 0.5) return std::pow(x, exponent);
  return exponent > 0 ? std::sqrt(x) : 1 / std::sqrt(x);
}

double clamp(const Node& node, double x) {
  if (has_attribute(node.attributes, "min"))
    x = x < number_of(node.attributes, "min") ? number_of(node.attributes, "min") : x;
  if (has_attribute(node.attributes, "max"))
    x = x > number_of(node.attributes, "max") ? number_of(node.attributes, "max") : x;
  return x;
}

// --- decompositions ----------------------------------------------------------------------------------------------------

/// Widens the operands, narrows the result to the first one's dtype.
template <ValueId (*f)(GraphBuilder&, const Node&, Values)>
Gradients decompose_wide(GraphBuilder& b, const Node& node, Values in) {
  std::vector<ValueId> wide;
  for (const ValueId operand : in) wide.push_back(b.widen(operand));
  return b.finish({b.cast(f(b, node, wide), b.dtype(in[0]))});
}

ValueId build_relu(GraphBuilder& b, const Node&, Values in) { return b.op("maximum", {in[0], b.constant(0, in[0])}); }

ValueId build_relu_backward(GraphBuilder& b, const Node&, Values in) {
  return b.select(b.compare("le", in[1], 0), b.constant(0, in[0]), in[0]);
}

ValueId build_silu(GraphBuilder& b, const Node&, Values in) { return b.mul(in[0], b.op("sigmoid", {in[0]})); }

ValueId build_silu_backward(GraphBuilder& b, const Node&, Values in) {
  const ValueId s = b.op("sigmoid", {in[1]});
  return b.mul(b.mul(in[0], s), b.add(b.mul(in[1], b.rsub(1, s)), 1.0));
}

ValueId build_tanh_backward(GraphBuilder& b, const Node&, Values in) {
  return b.mul(in[0], b.rsub(1, b.square(in[1])));
}

ValueId build_sigmoid_backward(GraphBuilder& b, const Node&, Values in) {
  return b.mul(in[0], b.mul(in[1], b.rsub(1, in[1])));
}

/// tanh(scale * (x + cubic x^3))
ValueId build_gelu_tanh(GraphBuilder& b, ValueId x) {
  const ValueId cubic = b.mul(b.mul(b.square(x), x), k_tanh_cubic);
  return b.op("tanh", {b.mul(b.add(x, cubic), k_tanh_scale)});
}

ValueId build_gelu(GraphBuilder& b, const Node& node, Values in) {
  const ValueId x = in[0];
  const ValueId bend = is_tanh(node) ? build_gelu_tanh(b, x) : b.op("erf", {b.mul(x, k_sqrt_half)});
  return b.mul(b.mul(x, 0.5), b.add(bend, 1.0));
}

ValueId build_gelu_backward(GraphBuilder& b, const Node& node, Values in) {
  const ValueId x = in[1];
  if (!is_tanh(node)) {
    const ValueId cdf = b.mul(b.add(b.op("erf", {b.mul(x, k_sqrt_half)}), 1.0), 0.5);
    const ValueId pdf = b.mul(b.exp(b.mul(b.square(x), -0.5)), k_inv_sqrt_2pi);
    return b.mul(in[0], b.add(cdf, b.mul(x, pdf)));
  }
  const ValueId t = build_gelu_tanh(b, x);
  const ValueId inner = b.mul(b.add(b.mul(b.square(x), 3 * k_tanh_cubic), 1.0), k_tanh_scale);
  const ValueId slope = b.mul(b.mul(b.mul(x, 0.5), b.rsub(1, b.square(t))), inner);
  return b.mul(in[0], b.add(b.mul(b.add(t, 1.0), 0.5), slope));
}

ValueId build_softplus(GraphBuilder& b, const Node& node, Values in) {
  const double beta = number_of(node.attributes, "beta");
  const ValueId scaled = b.mul(in[0], beta);
  const ValueId linear = b.compare("gt", scaled, number_of(node.attributes, "threshold"));
  // The branch not taken must stay finite, or its gradient would be 0 * inf.
  const ValueId safe = b.select(linear, b.constant(0, scaled), scaled);
  return b.select(linear, in[0], b.div(b.op("log1p", {b.exp(safe)}), beta));
}

ValueId build_elu(GraphBuilder& b, const Node& node, Values in) {
  const ValueId positive = b.compare("gt", in[0], 0);
  const ValueId safe = b.select(positive, b.constant(0, in[0]), in[0]);
  return b.select(positive, in[0], b.mul(b.op("expm1", {safe}), number_of(node.attributes, "alpha")));
}

ValueId build_leaky_relu(GraphBuilder& b, const Node& node, Values in) {
  return b.select(b.compare("gt", in[0], 0), in[0], b.mul(in[0], number_of(node.attributes, "slope")));
}

ValueId build_clamp(GraphBuilder& b, const Node& node, Values in) {
  ValueId x = in[0];
  if (has_attribute(node.attributes, "min")) x = b.op("maximum", {x, b.constant(number_of(node.attributes, "min"), x)});
  if (has_attribute(node.attributes, "max")) x = b.op("minimum", {x, b.constant(number_of(node.attributes, "max"), x)});
  return x;
}

/// Six times the hard sigmoid.
ValueId build_ramp(GraphBuilder& b, ValueId x) {
  const ValueId low = b.op("maximum", {b.add(x, 3.0), b.constant(0, x)});
  return b.op("minimum", {low, b.constant(6, low)});
}

ValueId build_hard_sigmoid(GraphBuilder& b, const Node&, Values in) { return b.div(build_ramp(b, in[0]), 6.0); }

ValueId build_hard_swish(GraphBuilder& b, const Node&, Values in) {
  return b.div(b.mul(in[0], build_ramp(b, in[0])), 6.0);
}

/// min(x, 0) - log1p(exp(-|x|)), which overflows nowhere.
ValueId build_log_sigmoid(GraphBuilder& b, const Node&, Values in) {
  const ValueId tail = b.op("log1p", {b.exp(b.neg(b.op("abs", {in[0]})))});
  return b.sub(b.op("minimum", {in[0], b.constant(0, in[0])}), tail);
}

ValueId build_mish(GraphBuilder& b, const Node& node, Values in) {
  const ValueId negated[] = {b.neg(in[0])};
  return b.mul(in[0], b.op("tanh", {b.neg(build_log_sigmoid(b, node, negated))}));
}

/// The exponents that models use cost no pow.
ValueId build_pow_scalar(GraphBuilder& b, const Node& node, Values in) {
  const double exponent = number_of(node.attributes, "exponent");
  const ValueId x = in[0];
  if (exponent == 1) return x;
  if (exponent == 2) return b.square(x);
  if (exponent == 3) return b.mul(b.square(x), x);
  if (exponent == 4) return b.square(b.square(x));
  if (exponent == 0.5) return b.op("sqrt", {x});
  if (exponent == -0.5) return b.op("rsqrt", {x});
  if (exponent == -1) return b.op("reciprocal", {x});
  return b.op("pow", {x, b.constant(exponent, x)});
}

// --- gradients where torch has a backward op -----------------------------------------------------------------------------

template <const char* const& backward, bool of_result>
Gradients backward_op(GraphBuilder& b, const Node& node, Values in, Values out, Values g) {
  return b.finish({b.op(backward, {g[0], of_result ? out[0] : in[0]}, node.attributes)});
}

constexpr const char* k_relu_backward = "relu_backward";
constexpr const char* k_gelu_backward = "gelu_backward";
constexpr const char* k_silu_backward = "silu_backward";

// --- logical, dropout --------------------------------------------------------------------------------------------------

Expected<Types> infer_logical(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_dtype(context, 1, context.operands[0]->dtype));
  KILN_ASSIGN_OR_RETURN(Shape shape, broadcast(context, context.operands[0]->shape, context.operands[1]->shape, 1));
  return Types{{DType::boolean, std::move(shape), {}}};
}

template <auto f>
double logical_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const auto operand = [&](size_t i) { return e.at_broadcast(node.operands[i], node.results[0], index) != 0; };
  return f(operand(0), operand(1)) ? 1 : 0;
}

Gradients decompose_logical(GraphBuilder& b, const Node& node, Values in) {
  const std::string name = "bitwise_" + std::string(node.op->name.substr(sizeof("logical_") - 1));
  return b.finish({b.op(name, {b.cast(in[0], DType::boolean), b.cast(in[1], DType::boolean)})});
}

Expected<Types> infer_dropout(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 0));
  KILN_RETURN_IF_ERROR(expect_type(context, 1, {DType::boolean, context.operands[0]->shape, {}}));
  return infer_same(context);
}

double dropout_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  return e.at(node.operands[0], index) * e.at(node.operands[1], index) * number_of(node.attributes, "scale");
}

Gradients decompose_dropout(GraphBuilder& b, const Node& node, Values in) {
  const ValueId x = b.widen(in[0]);
  const ValueId kept = b.mul(x, b.cast(in[1], accumulator_of(b.dtype(in[0]))));
  return b.finish({b.cast(b.mul(kept, number_of(node.attributes, "scale")), b.dtype(in[0]))});
}

Gradients dropout_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  return b.finish({b.op("dropout_apply", {g[0], in[1]}, node.attributes), k_none});
}

Expected<Types> infer_gelu(const OpContext& context) {
  const std::string& approximate = string_of(context.attributes, "approximate");
  if (approximate != "none" && approximate != "tanh") {
    return invalid_argument("{}: attribute 'approximate' is '{}', expected 'none' or 'tanh'", context.op.name,
                            approximate.substr(0, 32));
  }
  return infer_same_floating(context);
}

Expected<Types> infer_clamp(const OpContext& context) {
  if (context.operands[0]->dtype == DType::boolean) return operand_error(context, 0, "a number dtype");
  return infer_same(context);
}

OpDef composite(std::string_view name, std::vector<OperandDef> operands, decltype(OpDef::element) element,
                decltype(OpDef::decompose) decompose, decltype(OpDef::gradient) gradient = nullptr,
                std::vector<AttributeDef> attributes = {}) {
  return {.name = name,
          .kind = OpKind::composite,
          .operands = std::move(operands),
          .attributes = std::move(attributes),
          .infer = infer_same_floating,
          .element = element,
          .decompose = decompose,
          .gradient = gradient};
}

OpDef logical(std::string_view name, decltype(OpDef::element) element) {
  OpDef op = composite(name, {{"a"}, {"b"}}, element, decompose_logical);
  op.infer = infer_logical;
  return op;
}

OpDef with_rule(OpDef op, decltype(OpDef::infer) infer) {
  op.infer = infer;
  return op;
}

}  // namespace

std::span<const OpDef> activation_ops() {
  const std::vector<OperandDef> x = {{"x"}}, grad_x = {{"grad"}, {"x"}}, grad_out = {{"grad"}, {"out"}};
  const std::vector<AttributeDef> approximate = {fallback("approximate", AttributeType::string, std::string("none"))};
  static const std::vector<OpDef> rows = {
      logical("logical_and", logical_element<[](bool a, bool b) { return a && b; }>),
      logical("logical_or", logical_element<[](bool a, bool b) { return a || b; }>),
      logical("logical_xor", logical_element<[](bool a, bool b) { return a != b; }>),
      composite("relu", x, unary_element<relu>, decompose_wide<build_relu>, backward_op<k_relu_backward, true>),
      composite("relu_backward", grad_x, backward_element<relu_backward>, decompose_wide<build_relu_backward>),
      with_rule(composite("gelu", x, unary_element<gelu>, decompose_wide<build_gelu>,
                          backward_op<k_gelu_backward, false>, approximate),
                infer_gelu),
      with_rule(composite("gelu_backward", grad_x, backward_element<gelu_backward>, decompose_wide<build_gelu_backward>,
                          nullptr, approximate),
                infer_gelu),
      composite("silu", x, unary_element<silu>, decompose_wide<build_silu>, backward_op<k_silu_backward, false>),
      composite("silu_backward", grad_x, backward_element<silu_backward>, decompose_wide<build_silu_backward>),
      composite("tanh_backward", grad_out, backward_element<tanh_backward>, decompose_wide<build_tanh_backward>),
      composite("sigmoid_backward", grad_out, backward_element<sigmoid_backward>,
                decompose_wide<build_sigmoid_backward>),
      composite("softplus", x, unary_element<softplus>, decompose_wide<build_softplus>, nullptr,
                {fallback("beta", AttributeType::number, 1.0), fallback("threshold", AttributeType::number, 20.0)}),
      composite("elu", x, unary_element<elu>, decompose_wide<build_elu>, nullptr,
                {fallback("alpha", AttributeType::number, 1.0)}),
      composite("leaky_relu", x, unary_element<leaky_relu>, decompose_wide<build_leaky_relu>, nullptr,
                {fallback("slope", AttributeType::number, 0.01)}),
      with_rule(composite("clamp", x, unary_element<clamp>,
                          [](GraphBuilder& b, const Node& node, Values in) -> Gradients {
                            return b.finish({build_clamp(b, node, in)});
                          },
                          nullptr, {optional("min", AttributeType::number), optional("max", AttributeType::number)}),
                infer_clamp),
      composite("hard_sigmoid", x, unary_element<hard_sigmoid>, decompose_wide<build_hard_sigmoid>),
      composite("hard_swish", x, unary_element<hard_swish>, decompose_wide<build_hard_swish>),
      composite("log_sigmoid", x, unary_element<log_sigmoid_of>, decompose_wide<build_log_sigmoid>),
      composite("mish", x, unary_element<mish>, decompose_wide<build_mish>),
      composite("pow_scalar", x, unary_element<pow_scalar>, decompose_wide<build_pow_scalar>, nullptr,
                {required("exponent", AttributeType::number)}),
      with_rule(composite("dropout_apply", {{"x"}, {"mask"}}, dropout_element, decompose_dropout, dropout_gradient,
                          {required("scale", AttributeType::number)}),
                infer_dropout),
  };
  return rows;
}

}  // namespace kiln
