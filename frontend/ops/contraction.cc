// Matrix products.

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/row_products.h"
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

/// The row of a and the column of b whose product is element `index` of a @ b; `result` has the product's extents.
std::pair<Line, Line> factors(const ElementEvaluator& e, ValueId a, ValueId b, ValueId result, int64_t index) {
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
  return {{a, row, 1, k}, {b, column, n, k}};
}

double product_element(ElementEvaluator& e, ValueId a, ValueId b, ValueId result, int64_t index) {
  const auto [row, column] = factors(e, a, b, result, index);
  return e.dot(row, column);
}

/// The rows (or columns) that some elements of a product need, each once, and which of them each element needs.
struct Side {
  std::vector<Line> lines;
  std::vector<size_t> of_element;
  std::vector<size_t> place;  // of each row: one more than its place in `lines`; 0: not needed yet

  explicit Side(int64_t extent) : place(static_cast<size_t>(extent), 0) {}
  void add(int64_t number, const Line& line) {
    size_t& known = place[static_cast<size_t>(number)];
    if (known == 0) {
      lines.push_back(line);
      known = lines.size();
    }
    of_element.push_back(known - 1);
  }
};

/// The elements of one matrix product that are asked for.
struct AskedProduct {
  Side rows, columns;
  std::vector<size_t> places;  // in what is asked
};

/// Computes products of blocks of rows and columns: for where these come again and again.
void dense_products(ElementEvaluator& e, const Side& left, const Side& right, std::span<double> out) {
  constexpr size_t k_block_elements = size_t{1} << 22;  // 32 MiB
  const auto k = static_cast<size_t>(left.lines.front().count);
  const size_t most = std::max<size_t>(k_block_elements / std::max<size_t>(k, 1), 4);
  std::vector<double> rows, columns, products;
  for (size_t c = 0; c < right.lines.size(); c += most) {
    const auto column_lines = std::span(right.lines).subspan(c, std::min(most, right.lines.size() - c));
    columns.resize(column_lines.size() * k);
    e.read_lines(column_lines, columns.data());
    for (size_t r = 0; r < left.lines.size(); r += most) {
      const auto row_lines = std::span(left.lines).subspan(r, std::min(most, left.lines.size() - r));
      rows.resize(row_lines.size() * k);
      e.read_lines(row_lines, rows.data());
      products.resize(row_lines.size() * column_lines.size());
      row_products(rows.data(), row_lines.size(), columns.data(), column_lines.size(), k, products.data());
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t row = left.of_element[i] - r, column = right.of_element[i] - c;  // huge where it is before
        if (row < row_lines.size() && column < column_lines.size())
          out[i] = products[row * column_lines.size() + column];
      }
    }
  }
}

void product_elements(ElementEvaluator& e, ValueId a, ValueId b, ValueId result, std::span<const int64_t> indices,
                      std::span<double> out) {
  const int64_t m = e.extents(a)[e.extents(a).size() - 2], n = e.extents(b).back();
  std::map<int64_t, AskedProduct> matrices;  // of the batch
  for (size_t i = 0; i < indices.size(); ++i) {
    auto matrix = matrices.find(indices[i] / (m * n));
    if (matrix == matrices.end()) {
      matrix = matrices.emplace(indices[i] / (m * n), AskedProduct{Side(m), Side(n), {}}).first;
    }
    AskedProduct& asked = matrix->second;
    const auto [row, column] = factors(e, a, b, result, indices[i]);
    asked.rows.add(indices[i] / n % m, row);
    asked.columns.add(indices[i] % n, column);
    asked.places.push_back(i);
  }
  for (const auto& [matrix, asked] : matrices) {
    const Side &rows = asked.rows, &columns = asked.columns;
    std::vector<double> elements(asked.places.size());
    constexpr size_t k_most_in_vain =
        16;  // products that nobody asked for, to one that is: the loop is that much faster
    if (rows.lines.size() * columns.lines.size() <= k_most_in_vain * elements.size()) {
      dense_products(e, rows, columns, elements);
    } else {
      for (size_t i = 0; i < elements.size(); ++i) {
        elements[i] = e.dot(rows.lines[rows.of_element[i]], columns.lines[columns.of_element[i]]);
      }
    }
    for (size_t i = 0; i < elements.size(); ++i) out[asked.places[i]] = elements[i];
  }
}

Expected<Types> infer_matmul(const OpContext& context) {
  KILN_ASSIGN_OR_RETURN(TensorType type, product_type(context, 0));
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
