// Scalar operations as ops: numpy broadcasting, one dtype for all operands, and the derivative of each.

#include <cmath>
#include <numbers>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/rules.h"
#include "frontend/ops/scalar_math.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

// --- types -------------------------------------------------------------------------------------------------------------

enum class Accepts : uint8_t { floating, numbers, integers_or_boolean, i64, anything };

Status expect_class(const OpContext& context, size_t operand, Accepts accepts) {
  const DType dtype = context.operands[operand]->dtype;
  switch (accepts) {
    case Accepts::floating:
      return expect_floating(context, operand);
    case Accepts::numbers:
      return dtype == DType::boolean ? operand_error(context, operand, "a number dtype") : Status();
    case Accepts::integers_or_boolean:
      return is_floating(dtype) ? operand_error(context, operand, "an integer dtype or bool") : Status();
    case Accepts::i64:
      return expect_dtype(context, operand, DType::i64);
    case Accepts::anything:
      return {};
  }
  return {};
}

/// Operands from `first` on: one dtype, broadcast together (and with those before).
Expected<TensorType> broadcast_operands(const OpContext& context, size_t first, Accepts accepts) {
  KILN_RETURN_IF_ERROR(expect_class(context, first, accepts));
  TensorType result{context.operands[first]->dtype, context.operands[0]->shape, {}};
  for (size_t i = 1; i < context.operands.size(); ++i) {
    if (i > first) KILN_RETURN_IF_ERROR(expect_dtype(context, i, result.dtype));
    KILN_ASSIGN_OR_RETURN(result.shape, broadcast(context, result.shape, context.operands[i]->shape, i));
  }
  return result;
}

template <Accepts accepts>
Expected<Types> infer_arithmetic(const OpContext& context) {
  KILN_ASSIGN_OR_RETURN(TensorType type, broadcast_operands(context, 0, accepts));
  return Types{std::move(type)};
}

template <Accepts accepts>
Expected<Types> infer_predicate(const OpContext& context) {
  KILN_ASSIGN_OR_RETURN(TensorType type, broadcast_operands(context, 0, accepts));
  type.dtype = DType::boolean;
  return Types{std::move(type)};
}

Expected<Types> infer_cast(const OpContext& context) {
  return Types{{dtype_of(context.attributes, "dtype"), context.operands[0]->shape, {}}};
}

Expected<Types> infer_select(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_dtype(context, 0, DType::boolean));
  KILN_ASSIGN_OR_RETURN(TensorType type, broadcast_operands(context, 1, Accepts::anything));
  return Types{std::move(type)};
}

// --- values ------------------------------------------------------------------------------------------------------------

double pointwise_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  double operands[3] = {};
  for (size_t i = 0; i < node.operands.size(); ++i) {
    operands[i] = e.at_broadcast(node.operands[i], node.results[0], index);
  }
  return apply_scalar(node.op->scalar, graph.type(node.operands.back()).dtype, graph.type(node.results[0]).dtype,
                      operands[0], operands[1], operands[2]);
}

// --- derivatives -------------------------------------------------------------------------------------------------------
// Broadcasting is undone by the caller (autodiff sums a gradient to its operand's shape).

using GradientRule = decltype(OpDef::gradient);

Gradients no_gradient(GraphBuilder&, const Node& node, Values, Values, Values) {
  return std::vector<ValueId>(node.operands.size(), k_none);
}

Gradients extremum_gradient(GraphBuilder& b, Values in, ValueId g, std::string_view first_wins) {
  const ValueId zero = b.constant(0, g);
  const ValueId half = b.select(b.op("eq", {in[0], in[1]}), b.mul(g, 0.5), zero);  // ties share
  const ValueId wins = b.op(first_wins, {in[0], in[1]}), loses = b.op(first_wins, {in[1], in[0]});
  return b.finish({b.select(wins, g, half), b.select(loses, g, half)});
}

OpDef row(std::string_view name, ScalarOp scalar, std::vector<OperandDef> operands, decltype(OpDef::infer) infer,
          GradientRule gradient) {
  return {.name = name,
          .kind = OpKind::pointwise,
          .operands = std::move(operands),
          .scalar = scalar,
          .infer = infer,
          .element = pointwise_element,
          .gradient = gradient};
}

/// d/dx of one operand: g, x and the result, to the gradient.
template <auto derivative>
Gradients unary_gradient(GraphBuilder& b, const Node&, Values in, Values out, Values g) {
  return b.finish({derivative(b, g[0], in[0], out[0])});
}

#define KILN_DERIVATIVE(expression)                                                          \
  unary_gradient<[](GraphBuilder& b, [[maybe_unused]] ValueId g, [[maybe_unused]] ValueId x, \
                    [[maybe_unused]] ValueId y) -> ValueId { return expression; }>

std::vector<OpDef> unary_ops() {
  const auto numeric = [](std::string_view name, ScalarOp scalar, GradientRule gradient) {
    return row(name, scalar, {{"x"}}, infer_arithmetic<Accepts::numbers>, gradient);
  };
  const auto smooth = [](std::string_view name, ScalarOp scalar, GradientRule gradient) {
    return row(name, scalar, {{"x"}}, infer_arithmetic<Accepts::floating>, gradient);
  };
  std::vector<OpDef> rows = {
      numeric("neg", ScalarOp::neg, KILN_DERIVATIVE(b.neg(g))),
      numeric("abs", ScalarOp::abs, KILN_DERIVATIVE(b.mul(g, b.op("sign", {x})))),
      numeric("sign", ScalarOp::sign, no_gradient),
      smooth("exp", ScalarOp::exp, KILN_DERIVATIVE(b.mul(g, y))),
      smooth("expm1", ScalarOp::expm1, KILN_DERIVATIVE(b.mul(g, b.add(y, 1.0)))),
      smooth("log", ScalarOp::log, KILN_DERIVATIVE(b.div(g, x))),
      smooth("log1p", ScalarOp::log1p, KILN_DERIVATIVE(b.div(g, b.add(x, 1.0)))),
      smooth("sqrt", ScalarOp::sqrt, KILN_DERIVATIVE(b.div(g, b.mul(y, 2.0)))),
      smooth("rsqrt", ScalarOp::rsqrt, KILN_DERIVATIVE(b.mul(b.mul(g, b.mul(b.square(y), y)), -0.5))),
      smooth("reciprocal", ScalarOp::reciprocal, KILN_DERIVATIVE(b.neg(b.mul(g, b.square(y))))),
      smooth("sin", ScalarOp::sin, KILN_DERIVATIVE(b.mul(g, b.op("cos", {x})))),
      smooth("cos", ScalarOp::cos, KILN_DERIVATIVE(b.neg(b.mul(g, b.op("sin", {x}))))),
      smooth("tanh", ScalarOp::tanh, KILN_DERIVATIVE(b.mul(g, b.rsub(1, b.square(y))))),
      smooth("erf", ScalarOp::erf,
             KILN_DERIVATIVE(b.mul(g, b.mul(b.exp(b.neg(b.square(x))), 2 * std::numbers::inv_sqrtpi)))),
      smooth("sigmoid", ScalarOp::sigmoid, KILN_DERIVATIVE(b.mul(g, b.mul(y, b.rsub(1, y))))),
      smooth("floor", ScalarOp::floor, no_gradient),
      smooth("ceil", ScalarOp::ceil, no_gradient),
      smooth("round", ScalarOp::round, no_gradient),
      smooth("trunc", ScalarOp::trunc, no_gradient),
      row("is_nan", ScalarOp::is_nan, {{"x"}}, infer_predicate<Accepts::floating>, nullptr),
      row("is_inf", ScalarOp::is_inf, {{"x"}}, infer_predicate<Accepts::floating>, nullptr),
      row("logical_not", ScalarOp::logical_not, {{"x"}}, infer_predicate<Accepts::anything>, nullptr),
      row("bitwise_not", ScalarOp::bitwise_not, {{"x"}}, infer_arithmetic<Accepts::integers_or_boolean>, nullptr),
      row("cast", ScalarOp::cast, {{"x"}}, infer_cast,
          [](GraphBuilder& b, const Node&, Values in, Values, Values g) -> Gradients {
            return b.finish({b.cast(g[0], b.dtype(in[0]))});
          }),
  };
  for (OpDef& op : rows) {
    if (op.name == "cast") op.attributes = {required("dtype", AttributeType::dtype)};
  }
  return rows;
}

std::vector<OpDef> binary_ops() {
  const auto numeric = [](std::string_view name, ScalarOp scalar, GradientRule gradient) {
    return row(name, scalar, {{"a"}, {"b"}}, infer_arithmetic<Accepts::numbers>, gradient);
  };
  const auto smooth = [](std::string_view name, ScalarOp scalar, GradientRule gradient) {
    return row(name, scalar, {{"a"}, {"b"}}, infer_arithmetic<Accepts::floating>, gradient);
  };
  const auto any = [](std::string_view name, ScalarOp scalar, GradientRule gradient) {
    return row(name, scalar, {{"a"}, {"b"}}, infer_arithmetic<Accepts::anything>, gradient);
  };
  const auto compare = [](std::string_view name, ScalarOp scalar) {
    return row(name, scalar, {{"a"}, {"b"}}, infer_predicate<Accepts::anything>, nullptr);
  };
  const auto bitwise = [](std::string_view name, ScalarOp scalar) {
    return row(name, scalar, {{"a"}, {"b"}}, infer_arithmetic<Accepts::integers_or_boolean>, nullptr);
  };
  return {
      numeric(
          "add", ScalarOp::add,
          [](GraphBuilder& b, const Node&, Values, Values, Values g) -> Gradients { return b.finish({g[0], g[0]}); }),
      numeric("sub", ScalarOp::sub,
              [](GraphBuilder& b, const Node&, Values, Values, Values g) -> Gradients {
                return b.finish({g[0], b.neg(g[0])});
              }),
      numeric("mul", ScalarOp::mul,
              [](GraphBuilder& b, const Node&, Values in, Values, Values g) -> Gradients {
                return b.finish({b.mul(g[0], in[1]), b.mul(g[0], in[0])});
              }),
      smooth("div", ScalarOp::div,
             [](GraphBuilder& b, const Node&, Values in, Values out, Values g) -> Gradients {
               const ValueId over = b.div(g[0], in[1]);
               return b.finish({over, b.neg(b.mul(over, out[0]))});
             }),
      numeric("floor_div", ScalarOp::floor_div, no_gradient),
      numeric("remainder", ScalarOp::remainder,
              [](GraphBuilder& b, const Node&, Values in, Values, Values g) -> Gradients {
                return b.finish({g[0], b.neg(b.mul(g[0], b.op("floor_div", {in[0], in[1]})))});
              }),
      numeric("fmod", ScalarOp::fmod,
              [](GraphBuilder& b, const Node&, Values in, Values, Values g) -> Gradients {
                return b.finish({g[0], b.neg(b.mul(g[0], b.op("trunc", {b.div(in[0], in[1])})))});
              }),
      smooth("pow", ScalarOp::pow,
             [](GraphBuilder& b, const Node&, Values in, Values out, Values g) -> Gradients {
               const ValueId lower = b.op("pow", {in[0], b.sub(in[1], 1.0)});
               const ValueId log = b.select(b.compare("eq", in[0], 0), b.constant(0, g[0]), b.log(in[0]));
               return b.finish({b.mul(g[0], b.mul(in[1], lower)), b.mul(g[0], b.mul(out[0], log))});
             }),
      smooth("atan2", ScalarOp::atan2,
             [](GraphBuilder& b, const Node&, Values in, Values, Values g) -> Gradients {
               const ValueId over = b.div(g[0], b.add(b.square(in[0]), b.square(in[1])));
               return b.finish({b.mul(over, in[1]), b.neg(b.mul(over, in[0]))});
             }),
      any("minimum", ScalarOp::minimum,
          [](GraphBuilder& b, const Node&, Values in, Values, Values g) -> Gradients {
            return extremum_gradient(b, in, g[0], "lt");
          }),
      any("maximum", ScalarOp::maximum,
          [](GraphBuilder& b, const Node&, Values in, Values, Values g) -> Gradients {
            return extremum_gradient(b, in, g[0], "gt");
          }),
      compare("eq", ScalarOp::eq),
      compare("ne", ScalarOp::ne),
      compare("lt", ScalarOp::lt),
      compare("le", ScalarOp::le),
      compare("gt", ScalarOp::gt),
      compare("ge", ScalarOp::ge),
      bitwise("bitwise_and", ScalarOp::bitwise_and),
      bitwise("bitwise_or", ScalarOp::bitwise_or),
      bitwise("bitwise_xor", ScalarOp::bitwise_xor),
      row("philox", ScalarOp::philox, {{"key"}, {"counter"}}, infer_arithmetic<Accepts::i64>, no_gradient),
      row("select", ScalarOp::select, {{"condition"}, {"a"}, {"b"}}, infer_select,
          [](GraphBuilder& b, const Node&, Values in, Values, Values g) -> Gradients {
            const ValueId zero = b.constant(0, g[0]);
            return b.finish({k_none, b.select(in[0], g[0], zero), b.select(in[0], zero, g[0])});
          }),
  };
}

}  // namespace

std::span<const OpDef> pointwise_ops() {
  static const std::vector<OpDef> rows = [] {
    std::vector<OpDef> all = unary_ops();
    for (OpDef& op : binary_ops()) all.push_back(std::move(op));
    return all;
  }();
  return rows;
}

}  // namespace kiln
