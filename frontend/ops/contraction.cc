// Matrix products.

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "frontend/infer/builder.h"
#include "frontend/ops/asked_product.h"
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

using Line = ElementEvaluator::Line;

/// The matrices of a and b whose product has element `index` of a @ b; `result` has the product's extents.
struct Factors {
  Factors(const ElementEvaluator& e, ValueId a, ValueId b, ValueId result, int64_t index)
      : a(a), b(b), n(e.extents(b).back()), k(e.extents(a).back()) {
    const auto base = [&](ValueId operand) {
      const std::vector<int64_t>& extents = e.extents(operand);
      const size_t extra = e.extents(result).size() - extents.size();
      int64_t at = 0;
      for (size_t d = 0; d + 2 < extents.size(); ++d) {
        if (extents[d] != 1) at += coordinate(e, result, index, d + extra) * e.strides(operand)[d];
      }
      return at;
    };
    a_base = base(a), b_base = base(b);
  }
  Line row(int64_t number) const { return {a, a_base + number * k, 1, k}; }
  Line column(int64_t number) const { return {b, b_base + number, n, k}; }

  ValueId a, b;
  int64_t n, k, a_base, b_base;
};

int64_t rows_of(const ElementEvaluator& e, ValueId a) { return e.extents(a)[e.extents(a).size() - 2]; }

double product_element(ElementEvaluator& e, ValueId a, ValueId b, ValueId result, int64_t index) {
  const Factors factors(e, a, b, result, index);
  return e.dot(factors.row(index / factors.n % rows_of(e, a)), factors.column(index % factors.n));
}

void multiply(ElementEvaluator& e, const Factors& factors, const AskedProduct& asked, std::span<double> out) {
  constexpr size_t k_most_in_vain = 16;  // products that nobody asked for, to one that is: blocks are that much faster
  const NeededLines &rows = asked.rows, &columns = asked.columns;
  if (rows.numbers().size() * columns.numbers().size() > k_most_in_vain * asked.places.size()) {
    for (size_t i = 0; i < asked.places.size(); ++i) {
      out[asked.places[i]] = e.dot(factors.row(rows.number_of(i)), factors.column(columns.number_of(i)));
    }
    return;
  }
  const auto reads = [&](Line (Factors::*line)(int64_t) const) {
    return [&, line](std::span<const int64_t> numbers, double* elements) {
      std::vector<Line> lines;
      for (const int64_t number : numbers) lines.push_back((factors.*line)(number));
      e.read_lines(lines, elements);
    };
  };
  multiply_blocks(asked, static_cast<size_t>(factors.k), reads(&Factors::row), reads(&Factors::column), out);
}

void product_elements(ElementEvaluator& e, ValueId a, ValueId b, ValueId result, std::span<const int64_t> indices,
                      std::span<double> out) {
  const int64_t m = rows_of(e, a), n = e.extents(b).back();
  std::map<int64_t, AskedProduct> matrices;  // of the batch
  for (size_t i = 0; i < indices.size(); ++i) {
    matrices[indices[i] / (m * n)].add(indices[i] / n % m, indices[i] % n, i);
  }
  for (const auto& [matrix, asked] : matrices) {
    multiply(e, Factors(e, a, b, result, indices[asked.places.front()]), asked, out);
  }
}

Expected<Types> infer_matmul(const OpContext& context) {
  KILN_ASSIGN_OR_RETURN(TensorType type, product_type(context, 0));
  if (!has_attribute(context.attributes, "window")) return Types{std::move(type)};
  const int64_t window = integer_of(context.attributes, "window");
  const Dim& k = context.operands[0]->shape.back();
  if (window < 1 || !k.divided_by(Dim(window))) {
    return invalid_argument("matmul: attribute 'window' is {}, expected a divisor of {}", window, k.to_string());
  }
  return Types{std::move(type)};
}

double matmul_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  return product_element(e, node.operands[0], node.operands[1], node.results[0], index);
}

void matmul_elements(ElementEvaluator& e, const Graph& graph, NodeId id, std::span<const int64_t> indices,
                     std::span<double> out) {
  const Node& node = graph.node(id);
  product_elements(e, node.operands[0], node.operands[1], node.results[0], indices, out);
}

Gradients matmul_gradient(GraphBuilder& b, const Node&, Values in, Values, Values g) {
  return b.finish({b.matmul(g[0], b.transpose(in[1])), b.matmul(b.transpose(in[0]), g[0])});
}

Expected<Types> infer_addmm(const OpContext& context) {
  KILN_ASSIGN_OR_RETURN(TensorType type, product_type(context, 1));
  const auto is_whole = [&](const char* name) {
    const double factor = number_of(context.attributes, name);
    return factor == std::trunc(factor);
  };
  if (!is_floating(type.dtype) && !(is_whole("alpha") && is_whole("beta"))) {
    return operand_error(context, 1, "a floating dtype, or whole factors");
  }
  KILN_RETURN_IF_ERROR(expect_dtype(context, 0, type.dtype));
  KILN_ASSIGN_OR_RETURN(const Shape shape, broadcast(context, type.shape, context.operands[0]->shape, 0));
  if (shape.size() != type.rank()) return operand_error(context, 0, "what broadcasts to " + type.to_string());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != type.shape[d]) return operand_error(context, 0, "what broadcasts to " + type.to_string());
  }
  return Types{std::move(type)};
}

/// As in BLAS: with beta 0 the bias is not read, whatever it holds.
double with_bias(ElementEvaluator& e, const Node& node, double product, int64_t index) {
  const double beta = number_of(node.attributes, "beta");
  const double bias = beta == 0 ? 0 : beta * e.at_broadcast(node.operands[0], node.results[0], index);
  return number_of(node.attributes, "alpha") * product + bias;
}

double addmm_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  return with_bias(e, node, product_element(e, node.operands[1], node.operands[2], node.results[0], index), index);
}

void addmm_elements(ElementEvaluator& e, const Graph& graph, NodeId id, std::span<const int64_t> indices,
                    std::span<double> out) {
  const Node& node = graph.node(id);
  product_elements(e, node.operands[1], node.operands[2], node.results[0], indices, out);
  for (size_t i = 0; i < indices.size(); ++i) out[i] = with_bias(e, node, out[i], indices[i]);
}

Gradients decompose_addmm(GraphBuilder& b, const Node& node, Values in) {
  const double alpha = number_of(node.attributes, "alpha"), beta = number_of(node.attributes, "beta");
  ValueId product = b.matmul(in[1], in[2]);
  if (alpha != 1) product = b.mul(product, alpha);
  if (beta == 0) return b.finish({product});
  return b.finish({b.add(product, beta == 1 ? in[0] : b.mul(in[0], beta))});
}

// --- groups ----------------------------------------------------------------------------------------------------------------

/// Whether rows of `a` are in groups; else what is summed is.
bool are_rows_grouped(size_t rank_of_b) { return rank_of_b == 3; }

Expected<Types> infer_grouped_matmul(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 0));
  const TensorType &a = *context.operands[0], &b = *context.operands[1], &ends = *context.operands[2];
  KILN_RETURN_IF_ERROR(expect_dtype(context, 1, a.dtype));
  KILN_RETURN_IF_ERROR(expect_index(context, 2));
  if (a.rank() != 2) return operand_error(context, 0, "rank 2");
  if (b.rank() != 2 && b.rank() != 3) return operand_error(context, 1, "rank 2 or 3");
  if (ends.rank() != 1) return operand_error(context, 2, "rank 1");
  KILN_RETURN_IF_ERROR(expect_equal(context, a.shape.back(), b.shape[b.rank() - 2], 1, "a number of rows of"));
  if (!are_rows_grouped(b.rank())) {
    return Types{{a.dtype, {ends.shape[0], a.shape[0], b.shape[1]}, {}}};
  }
  KILN_RETURN_IF_ERROR(expect_equal(context, b.shape[0], ends.shape[0], 2, "an extent of"));
  return Types{{a.dtype, {a.shape[0], b.shape[2]}, {}}};
}

/// Where groups end, none before another one does and none behind `extent`; NaN where that is not known.
std::span<const double> ends_of_groups(ElementEvaluator& e, NodeId id, ValueId ends, int64_t extent) {
  const int64_t groups = e.extents(ends)[0];
  return e.scratch(id, 0, static_cast<size_t>(groups), [&](std::span<double> known) {
    double last = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const double end = std::min(e.at(ends, g), static_cast<double>(extent));
      last = std::isnan(end) || end > last ? end : last;
      known[static_cast<size_t>(g)] = last;
    }
  });
}

double grouped_matmul_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const ValueId a = node.operands[0], b = node.operands[1];
  const bool has_row_groups = are_rows_grouped(e.extents(b).size());
  const int64_t n = e.extents(b).back(), k = e.extents(a)[1];
  const auto ends = ends_of_groups(e, id, node.operands[2], e.extents(a)[has_row_groups ? 0 : 1]);
  if (std::ranges::any_of(ends, [](double end) { return std::isnan(end); })) return NAN;
  if (has_row_groups) {
    const int64_t row = index / n;
    const auto group = std::ranges::upper_bound(ends, static_cast<double>(row)) - ends.begin();
    if (group == std::ssize(ends)) return 0;
    return e.dot({a, row * k, 1, k}, {b, group * k * n + index % n, n, k});
  }
  const int64_t m = e.extents(a)[0];
  const auto group = static_cast<size_t>(index / (m * n));
  const auto begin = group == 0 ? 0 : static_cast<int64_t>(ends[group - 1]), end = static_cast<int64_t>(ends[group]);
  if (begin == end) return 0;
  return e.dot({a, index / n % m * k + begin, 1, end - begin}, {b, begin * n + index % n, n, end - begin});
}

Gradients grouped_matmul_gradient(GraphBuilder& b, const Node&, Values in, Values, Values g) {
  if (!b.status().ok()) return b.status();
  const auto product = [&](ValueId left, ValueId right) { return b.op("grouped_matmul", {left, right, in[2]}); };
  const ValueId of_a = are_rows_grouped(b.shape(in[1]).size()) ? product(g[0], b.transpose(in[1]))
                                                               : b.transpose(product(in[1], b.transpose(g[0])));
  const ValueId of_b = product(b.transpose(in[0]), g[0]);
  return b.finish({of_a, of_b, k_none});
}

}  // namespace

std::span<const OpDef> contraction_ops() {
  static const std::vector<OpDef> rows = {
      {.name = "matmul",
       .kind = OpKind::contraction,
       .operands = {{"a"}, {"b"}},
       .attributes = {optional("window", AttributeType::integer)},
       .infer = infer_matmul,
       .element = matmul_element,
       .elements = matmul_elements,
       .gradient = matmul_gradient},
      {.name = "addmm",
       .kind = OpKind::composite,
       .operands = {{"bias"}, {"a"}, {"b"}},
       .attributes = {fallback("alpha", AttributeType::number, 1.0), fallback("beta", AttributeType::number, 1.0)},
       .infer = infer_addmm,
       .element = addmm_element,
       .elements = addmm_elements,
       .decompose = decompose_addmm},
      {.name = "grouped_matmul",
       .kind = OpKind::contraction,
       .operands = {{"a"}, {"b"}, {"ends"}},
       .infer = infer_grouped_matmul,
       .element = grouped_matmul_element,
       .gradient = grouped_matmul_gradient},
  };
  return rows;
}

}  // namespace kiln
