// Matrix products.

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/rules.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

/// The product of operands `first` and `first + 1`: [batch…, m, k] x [batch…, k, n].
Expected<TensorType> product_type(const OpContext& context, size_t first) {
  KILN_RETURN_IF_ERROR(expect_rank_at_least(context, first, 2));
  KILN_RETURN_IF_ERROR(expect_rank_at_least(context, first + 1, 2));
  const TensorType& a = *context.operands[first];
  const TensorType& b = *context.operands[first + 1];
  if (a.dtype == DType::boolean) return operand_error(context, first, "a number dtype");
  KILN_RETURN_IF_ERROR(expect_dtype(context, first + 1, a.dtype));
  KILN_RETURN_IF_ERROR(expect_equal(context, a.shape.back(), b.shape[b.rank() - 2], first + 1, "a number of rows of"));
  KILN_ASSIGN_OR_RETURN(Shape shape, broadcast(context, Shape(a.shape.begin(), a.shape.end() - 2),
                                               Shape(b.shape.begin(), b.shape.end() - 2), first + 1));
  shape.push_back(a.shape[a.rank() - 2]);
  shape.push_back(b.shape.back());
  return TensorType{a.dtype, std::move(shape), {}};
}

/// Element `index` of a @ b; `result` has the product's extents.
double product_element(ElementEvaluator& e, ValueId a, ValueId b, ValueId result, int64_t index) {
  const auto matrix_base = [&](ValueId operand) {  // where the operand's matrix for this batch index begins
    const std::vector<int64_t>& extents = e.extents(operand);
    const size_t extra = e.extents(result).size() - extents.size();
    int64_t base = 0;
    for (size_t d = 0; d + 2 < extents.size(); ++d) {
      if (extents[d] != 1) base += coordinate(e, result, index, d + extra) * e.strides(operand)[d];
    }
    return base;
  };
  const int64_t n = e.extents(b).back(), k = e.extents(a).back();
  const int64_t m = e.extents(a)[e.extents(a).size() - 2];
  const int64_t row = matrix_base(a) + index / n % m * k;
  const int64_t column = matrix_base(b) + index % n;
  return e.dot({a, row, 1, k}, {b, column, n, k});
}

Expected<Types> infer_matmul(const OpContext& context) {
  KILN_ASSIGN_OR_RETURN(TensorType type, product_type(context, 0));
  return Types{std::move(type)};
}

double matmul_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  return product_element(e, node.operands[0], node.operands[1], node.results[0], index);
}

Gradients matmul_gradient(GraphBuilder& b, const Node&, Values in, Values, Values g) {
  return b.finish({b.matmul(g[0], b.transpose(in[1])), b.matmul(b.transpose(in[0]), g[0])});
}

Expected<Types> infer_addmm(const OpContext& context) {
  KILN_ASSIGN_OR_RETURN(TensorType type, product_type(context, 1));
  KILN_RETURN_IF_ERROR(expect_floating(context, 1));
  KILN_RETURN_IF_ERROR(expect_dtype(context, 0, type.dtype));
  KILN_ASSIGN_OR_RETURN(const Shape shape, broadcast(context, type.shape, context.operands[0]->shape, 0));
  if (shape.size() != type.rank()) return operand_error(context, 0, "what broadcasts to " + type.to_string());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != type.shape[d]) return operand_error(context, 0, "what broadcasts to " + type.to_string());
  }
  return Types{std::move(type)};
}

double addmm_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const double product = product_element(e, node.operands[1], node.operands[2], node.results[0], index);
  const double beta = number_of(node.attributes, "beta");
  // As in BLAS: with beta 0 the bias is not read, whatever it holds.
  const double bias = beta == 0 ? 0 : beta * e.at_broadcast(node.operands[0], node.results[0], index);
  return number_of(node.attributes, "alpha") * product + bias;
}

Gradients decompose_addmm(GraphBuilder& b, const Node& node, Values in) {
  const double alpha = number_of(node.attributes, "alpha"), beta = number_of(node.attributes, "beta");
  ValueId product = b.matmul(in[1], in[2]);
  if (alpha != 1) product = b.mul(product, alpha);
  if (beta == 0) return b.finish({product});
  return b.finish({b.add(product, beta == 1 ? in[0] : b.mul(in[0], beta))});
}

}  // namespace

std::span<const OpDef> contraction_ops() {
  static const std::vector<OpDef> rows = {
      {.name = "matmul",
       .kind = OpKind::contraction,
       .operands = {{"a"}, {"b"}},
       .infer = infer_matmul,
       .element = matmul_element,
       .gradient = matmul_gradient},
      {.name = "addmm",
       .kind = OpKind::composite,
       .operands = {{"bias"}, {"a"}, {"b"}},
       .attributes = {fallback("alpha", AttributeType::number, 1.0), fallback("beta", AttributeType::number, 1.0)},
       .infer = infer_addmm,
       .element = addmm_element,
       .decompose = decompose_addmm},
  };
  return rows;
}

}  // namespace kiln
