// Reductions over `dims`, and what is made of them.

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

Expected<Types> infer_reduced(const OpContext& context) {
  const TensorType& x = *context.operands[0];
  KILN_RETURN_IF_ERROR(check_dims(context, "dims", x.rank()));
  return Types{
      {x.dtype,
       reduced_shape(x.shape, integers_of(context.attributes, "dims"), boolean_of(context.attributes, "keep_dims")),
       {}}};
}

Expected<Types> infer_reduced_numbers(const OpContext& context) {
  const TensorType& x = *context.operands[0];
  if (x.dtype == DType::boolean) return operand_error(context, 0, "a number dtype");
  const bool is_extreme = context.op.combiner == Combiner::maximum || context.op.combiner == Combiner::minimum;
  for (const int64_t dim : integers_of(context.attributes, "dims")) {
    const bool is_empty =
        dim >= 0 && dim < static_cast<int64_t>(x.rank()) && x.shape[static_cast<size_t>(dim)] == Dim(0);
    if (is_extreme && is_empty && !is_floating(x.dtype)) {
      return operand_error(context, 0, fmt::format("dim {} not to be empty: of no integers none is the largest", dim));
    }
  }
  return infer_reduced(context);
}

Expected<Types> infer_reduced_boolean(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_dtype(context, 0, DType::boolean));
  return infer_reduced(context);
}

Expected<Types> infer_reduced_floating(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 0));
  return infer_reduced(context);
}

/// Calls visit(element) for each element of the operand that result element `index` reduces.
template <typename Visit>
void for_each_reduced(ElementEvaluator& e, const Node& node, int64_t index, Visit&& visit) {
  const ReducedRange range(e, node, index);
  e.prepare(node.operands[0], range.count(), [&](int64_t i) { return range.at(i); });
  for (int64_t i = 0; i < range.count(); ++i) visit(e.at(node.operands[0], range.at(i)));
}

double reduction_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const DType dtype = graph.type(node.results[0]).dtype;
  const Combiner combiner = node.op->combiner;
  double total = neutral_of(combiner, dtype);
  if (combiner == Combiner::product && is_integral(dtype)) {  // f64 would lose the low bits, to which it wraps
    for_each_reduced(e, node, index, [&](double x) { total = apply_scalar(ScalarOp::mul, dtype, dtype, total, x, 0); });
    return total;
  }
  for_each_reduced(e, node, index, [&](double x) { total = combine(combiner, total, x); });
  return total;
}

double mean_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  double total = 0, count = 0;
  for_each_reduced(e, graph.node(id), index, [&](double x) { total += x, count += 1; });
  return total / count;
}

double var_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t result, int64_t index) {
  const Node& node = graph.node(id);
  const double mean = mean_element(e, graph, id, result, index);
  double total = 0, count = 0;
  for_each_reduced(e, node, index, [&](double x) { total += (x - mean) * (x - mean), count += 1; });
  return total / std::max(0.0, count - static_cast<double>(integer_of(node.attributes, "correction")));
}

double norm2_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  double total = 0;
  for_each_reduced(e, graph.node(id), index, [&](double x) { total += x * x; });
  return std::sqrt(total);
}

double logsumexp_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  double largest = neutral_of(Combiner::maximum, DType::f64);
  for_each_reduced(e, node, index, [&](double x) { largest = combine(Combiner::maximum, largest, x); });
  const double shift = std::isinf(largest) ? 0 : largest;
  double total = 0;
  for_each_reduced(e, node, index, [&](double x) { total += std::exp(x - shift); });
  return std::log(total) + shift;
}

/// A reduction's result, or its gradient, repeated over what was reduced.
ValueId spread(GraphBuilder& b, const Node& node, ValueId reduced, ValueId like) {
  if (!b.status().ok()) return k_none;
  const Shape shape = b.shape(like);
  return b.expand(b.reshape(reduced, reduced_shape(shape, integers_of(node.attributes, "dims"), true)), shape);
}

Dim reduced_count(GraphBuilder& b, const Node& node, ValueId x) {
  Dim count(1);
  for (const int64_t dim : integers_of(node.attributes, "dims")) count = count * b.shape(x)[static_cast<size_t>(dim)];
  return count;
}

Gradients sum_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  return b.finish({spread(b, node, g[0], in[0])});
}

Gradients prod_gradient(GraphBuilder& b, const Node& node, Values in, Values out, Values g) {
  return b.finish({b.div(spread(b, node, b.mul(g[0], out[0]), in[0]), in[0])});  // as torch where no factor is 0
}

/// Ties share the gradient evenly.
Gradients extremum_gradient(GraphBuilder& b, const Node& node, Values in, Values out, Values g) {
  const ValueId hit = b.cast(b.op("eq", {in[0], spread(b, node, out[0], in[0])}), b.dtype(in[0]));
  const ValueId count = spread(b, node, b.sum(hit, integers_of(node.attributes, "dims"), true), in[0]);
  return b.finish({b.mul(spread(b, node, g[0], in[0]), b.div(hit, count))});
}

Gradients decompose_mean(GraphBuilder& b, const Node& node, Values in) {
  const ValueId x = b.widen(in[0]);
  const ValueId total = b.sum(x, integers_of(node.attributes, "dims"), boolean_of(node.attributes, "keep_dims"));
  const ValueId count = b.extent(reduced_count(b, node, x), b.dtype(x));
  return b.finish({b.cast(b.div(total, count), b.dtype(in[0]))});
}

Gradients decompose_var(GraphBuilder& b, const Node& node, Values in) {
  const std::vector<int64_t>& dims = integers_of(node.attributes, "dims");
  const ValueId x = b.widen(in[0]);
  const ValueId centred = b.sub(x, b.mean(x, dims, true));
  const ValueId total = b.sum(b.square(centred), dims, boolean_of(node.attributes, "keep_dims"));
  const ValueId count =
      b.extent(reduced_count(b, node, x) - Dim(integer_of(node.attributes, "correction")), b.dtype(x));
  return b.finish({b.cast(b.div(total, b.op("maximum", {count, b.constant(0, count)})), b.dtype(in[0]))});
}

Gradients decompose_norm2(GraphBuilder& b, const Node& node, Values in) {
  const ValueId x = b.widen(in[0]);
  const ValueId total =
      b.sum(b.square(x), integers_of(node.attributes, "dims"), boolean_of(node.attributes, "keep_dims"));
  return b.finish({b.cast(b.op("sqrt", {total}), b.dtype(in[0]))});
}

Gradients decompose_logsumexp(GraphBuilder& b, const Node& node, Values in) {
  const std::vector<int64_t>& dims = integers_of(node.attributes, "dims");
  const ValueId x = b.widen(in[0]);
  const ValueId largest = b.amax(x, dims, true);
  const ValueId shift = b.select(b.op("is_inf", {largest}), b.constant(0, largest), largest);
  const ValueId out = b.add(b.log(b.sum(b.exp(b.sub(x, shift)), dims, true)), shift);
  if (!b.status().ok()) return b.status();
  const Shape shape = reduced_shape(b.shape(x), dims, boolean_of(node.attributes, "keep_dims"));
  return b.finish({b.cast(b.reshape(out, shape), b.dtype(in[0]))});
}

/// The gradient goes through the softmax, not through the maximum.
Gradients logsumexp_gradient(GraphBuilder& b, const Node& node, Values in, Values out, Values g) {
  const ValueId weights = b.exp(b.sub(in[0], spread(b, node, out[0], in[0])));
  return b.finish({b.mul(spread(b, node, g[0], in[0]), weights)});
}

}  // namespace

std::span<const OpDef> reduction_ops() {
  static const std::vector<AttributeDef> attributes = {required("dims", AttributeType::integers),
                                                       fallback("keep_dims", AttributeType::boolean, false)};
  const auto reduction = [](std::string_view name, Combiner combiner, decltype(OpDef::infer) infer,
                            decltype(OpDef::gradient) gradient) {
    return OpDef{.name = name,
                 .kind = OpKind::reduction,
                 .operands = {{"x"}},
                 .attributes = attributes,
                 .combiner = combiner,
                 .infer = infer,
                 .element = reduction_element,
                 .gradient = gradient};
  };
  const auto composite = [](std::string_view name, decltype(OpDef::element) element,
                            decltype(OpDef::decompose) decompose, decltype(OpDef::gradient) gradient = nullptr) {
    return OpDef{.name = name,
                 .kind = OpKind::composite,
                 .operands = {{"x"}},
                 .attributes = attributes,
                 .infer = infer_reduced_floating,
                 .element = element,
                 .decompose = decompose,
                 .gradient = gradient};
  };
  static const std::vector<OpDef> rows = [&] {
    std::vector<OpDef> all = {
        reduction("sum", Combiner::sum, infer_reduced_numbers, sum_gradient),
        reduction("prod", Combiner::product, infer_reduced_numbers, prod_gradient),
        reduction("amax", Combiner::maximum, infer_reduced_numbers, extremum_gradient),
        reduction("amin", Combiner::minimum, infer_reduced_numbers, extremum_gradient),
        reduction("any", Combiner::logical_or, infer_reduced_boolean, nullptr),
        reduction("all", Combiner::logical_and, infer_reduced_boolean, nullptr),
        composite("mean", mean_element, decompose_mean),
        composite("var", var_element, decompose_var),
        composite("norm2", norm2_element, decompose_norm2),
        composite("logsumexp", logsumexp_element, decompose_logsumexp, logsumexp_gradient),
    };
    for (OpDef& op : all) {
      if (op.name == "var") op.attributes.push_back(fallback("correction", AttributeType::integer, int64_t{1}));
    }
    return all;
  }();
  return rows;
}

}  // namespace kiln
