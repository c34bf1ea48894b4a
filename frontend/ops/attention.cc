// Attention as one op, and its backward.
//
// score[b, h, q, k] = scale * (Q[b, h, q, :] · K[b, h / group, k, :]) + bias, kept where k <= q + causal_offset if
// causal. out = softmax_k(score) V, lse = log Σ_k exp(score) in natural logarithms, -inf (and out 0) for a row that
// keeps no key. Backward recomputes the probabilities as exp(score - lse), 0 where lse is -inf: FlashAttention-2 (Dao,
// arXiv 2307.08691), algorithm 2. Both therefore must agree on lse: both read `scores` below, in the reference and in
// the decomposition, so that taking one whole and the other apart gives the same gradients.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/row_products.h"
#include "frontend/ops/rules.h"
#include "frontend/ops/scalar_math.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

// --- types -------------------------------------------------------------------------------------------------------------

Status expect_heads(const OpContext& context, size_t operand) {
  if (context.operands[operand]->rank() == 4) return {};
  return operand_error(context, operand, "rank 4: batch, heads, sequence, features");
}

/// Whether each head of the operand's serves as many of `heads`.
Status expect_shared(const OpContext& context, size_t operand, const Dim& heads) {
  if (heads.divided_by(context.operands[operand]->shape[1])) return {};
  return operand_error(context, operand, fmt::format("heads that divide {}", heads.to_string()));
}

/// Operands q and k from `first` on.
Status check_scores(const OpContext& context, size_t first) {
  KILN_RETURN_IF_ERROR(expect_floating(context, first));
  for (size_t i = first; i < first + 2; ++i) KILN_RETURN_IF_ERROR(expect_heads(context, i));
  const TensorType &q = *context.operands[first], &k = *context.operands[first + 1];
  KILN_RETURN_IF_ERROR(
      expect_type(context, first + 1, {q.dtype, {q.shape[0], k.shape[1], k.shape[2], q.shape[3]}, {}}));
  return expect_shared(context, first + 1, q.shape[1]);
}

/// Operands q, k, v from `first` on, and the bias at `bias`.
Status check_attention(const OpContext& context, size_t first, size_t bias) {
  KILN_RETURN_IF_ERROR(check_scores(context, first));
  KILN_RETURN_IF_ERROR(expect_heads(context, first + 2));
  const TensorType &q = *context.operands[first], &k = *context.operands[first + 1], &v = *context.operands[first + 2];
  KILN_RETURN_IF_ERROR(
      expect_type(context, first + 2, {q.dtype, {q.shape[0], k.shape[1], k.shape[2], v.shape[3]}, {}}));
  if (context.operands[bias] == nullptr) return {};
  const TensorType& added = *context.operands[bias];  // widened in the kernel, so it may be wide already
  if (added.dtype != accumulator_of(q.dtype)) KILN_RETURN_IF_ERROR(expect_dtype(context, bias, q.dtype));
  const Shape scores = {q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
  KILN_ASSIGN_OR_RETURN(const Shape shape, broadcast(context, scores, added.shape, bias));
  if (shape == scores) return {};
  return operand_error(context, bias, "what broadcasts to " + TensorType{q.dtype, scores, {}}.to_string());
}

TensorType output_type(const TensorType& q, const TensorType& v) {
  return {q.dtype, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]}, {}};
}

TensorType lse_type(const TensorType& q) { return {accumulator_of(q.dtype), {q.shape[0], q.shape[1], q.shape[2]}, {}}; }

Expected<Types> infer_attention(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_attention(context, 0, 3));
  return Types{output_type(*context.operands[0], *context.operands[2]), lse_type(*context.operands[0])};
}

/// grad_out, q, k, v, out, lse, bias?
Expected<Types> infer_attention_backward(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_attention(context, 1, 6));
  const TensorType& q = *context.operands[1];
  const TensorType& v = *context.operands[3];
  KILN_RETURN_IF_ERROR(expect_type(context, 0, output_type(q, v)));
  KILN_RETURN_IF_ERROR(expect_type(context, 4, output_type(q, v)));
  KILN_RETURN_IF_ERROR(expect_type(context, 5, lse_type(q)));
  Types types;
  for (size_t i = 1; i < 4; ++i) types.push_back({q.dtype, context.operands[i]->shape, {}});
  return types;
}

/// q, k
Expected<Types> infer_scores(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_scores(context, 0));
  const TensorType &q = *context.operands[0], &k = *context.operands[1];
  return Types{{accumulator_of(q.dtype), {q.shape[0], q.shape[1], q.shape[2], k.shape[2]}, {}}};
}

/// scores, v
Expected<Types> infer_of_scores(const OpContext& context) {
  KILN_RETURN_IF_ERROR(expect_floating(context, 1));
  for (size_t i = 0; i < 2; ++i) KILN_RETURN_IF_ERROR(expect_heads(context, i));
  const TensorType &scores = *context.operands[0], &v = *context.operands[1];
  const DType wide = accumulator_of(v.dtype);
  if (scores.dtype != wide) KILN_RETURN_IF_ERROR(expect_dtype(context, 0, v.dtype));
  KILN_RETURN_IF_ERROR(
      expect_type(context, 1, {v.dtype, {scores.shape[0], v.shape[1], scores.shape[3], v.shape[3]}, {}}));
  KILN_RETURN_IF_ERROR(expect_shared(context, 1, scores.shape[1]));
  const Shape rows(scores.shape.begin(), scores.shape.end() - 1);
  return Types{{v.dtype, {rows[0], rows[1], rows[2], v.shape[3]}, {}}, {wide, rows, {}}};
}

// --- reference ---------------------------------------------------------------------------------------------------------

/// How many of the keys a query keeps, the first ones.
int64_t kept_of_causal(int64_t keys, int64_t query, int64_t offset) {
  return std::clamp<int64_t>(query + offset + 1, 0, keys);
}

/// The operands both directions share, and index arithmetic over them. A query row is (b * heads + h) * queries + q,
/// a key row (b * kv_heads + h) * keys + k.
struct Problem {
  ElementEvaluator& e;
  NodeId id;
  ValueId q, k, v, bias;
  int64_t heads, kv_heads, group, queries, keys, features, value_features;
  double scale;
  bool causal;
  int64_t causal_offset;

  Problem(ElementEvaluator& evaluator, NodeId node_id, const Node& node, size_t first, ValueId bias_operand)
      : e(evaluator),
        id(node_id),
        q(node.operands[first]),
        k(node.operands[first + 1]),
        v(node.operands[first + 2]),
        bias(bias_operand),
        heads(e.extents(q)[1]),
        kv_heads(e.extents(k)[1]),
        group(heads / kv_heads),
        queries(e.extents(q)[2]),
        keys(e.extents(k)[2]),
        features(e.extents(q)[3]),
        value_features(e.extents(v)[3]),
        scale(number_of(node.attributes, "scale")),
        causal(boolean_of(node.attributes, "causal")),
        causal_offset(integer_of(node.attributes, "causal_offset")) {}

  int64_t key_row(int64_t query_row, int64_t key) const {
    const int64_t batch = query_row / (heads * queries), head = query_row / queries % heads;
    return (batch * kv_heads + head / group) * keys + key;
  }
  bool keeps(int64_t query_row, int64_t key) const { return key < kept(query_row); }
  int64_t kept(int64_t query_row) const {
    return causal ? kept_of_causal(keys, query_row % queries, causal_offset) : keys;
  }

  /// The keys (or values) of a query row's head, row after row; likewise what belongs to the queries of a key row's group.
  std::shared_ptr<const std::vector<double>> of_keys(size_t slot, ValueId value, int64_t query_row,
                                                     int64_t width) const {
    return e.matrix(slot, value, key_row(query_row, 0) * width, keys, width);
  }
  std::span<const double> row_of(ValueId value, int64_t row, int64_t width) const {
    return e.line(0, {value, row * width, 1, width});
  }
  /// -inf where the key is not kept. `product` is Q · K.
  double score(int64_t query_row, int64_t key, double product) const {
    return keeps(query_row, key) ? scale * product + bias_at(query_row, key) : -k_infinity;
  }
  double dot(ValueId a, int64_t a_row, ValueId b, int64_t b_row, int64_t length) const {
    return e.dot({a, a_row * length, 1, length}, {b, b_row * length, 1, length});
  }
  double bias_at(int64_t query_row, int64_t key) const {
    return bias == k_none ? 0 : e.at(bias, bias_index(query_row, key));
  }
  int64_t bias_index(int64_t query_row, int64_t key) const {
    const int64_t at[] = {query_row / (heads * queries), query_row / queries % heads, query_row % queries, key};
    const std::vector<int64_t>& extents = e.extents(bias);
    int64_t index = 0;
    for (size_t d = 0; d < extents.size(); ++d) {
      if (extents[d] != 1) index += at[d + 4 - extents.size()] * e.strides(bias)[d];
    }
    return index;
  }
  /// Has biases computed that are asked for next: together they cost far less than one by one.
  template <typename IndexOf>
  void prepare_biases(int64_t count, IndexOf index_of) const {
    if (bias != k_none) e.prepare(bias, count, index_of);
  }
};

/// The product of one row with each row of a matrix.
std::vector<double> products_with(std::span<const double> row, const std::vector<double>& matrix, int64_t count) {
  std::vector<double> products(static_cast<size_t>(count));
  row_products(row.data(), 1, matrix.data(), products.size(), row.size(), products.data());
  return products;
}

/// A query row's output, then its lse, of its scores and the rows of the values.
void fill_from_scores(std::vector<double> scores, const std::vector<double>& values, std::span<double> out) {
  double largest = -k_infinity;
  for (const double score : scores) largest = std::isnan(score) || score > largest ? score : largest;
  out.back() = -k_infinity;
  if (largest == -k_infinity) return;  // no key: zeros
  double sum = 0;
  for (double& score : scores) sum += score = score == -k_infinity ? 0 : std::exp(score - largest);
  add_weighted_rows(scores, values.data(), out.first(out.size() - 1));
  for (double& value : out.first(out.size() - 1)) value /= sum;
  out.back() = std::log(sum) + largest;
}

void fill_output_row(const Problem& p, int64_t row, std::span<double> out) {
  const auto keys = p.of_keys(0, p.k, row, p.features);
  std::vector<double> scores = products_with(p.row_of(p.q, row, p.features), *keys, p.keys);
  p.prepare_biases(p.kept(row), [&](int64_t key) { return p.bias_index(row, key); });
  for (int64_t key = 0; key < p.keys; ++key) {
    double& score = scores[static_cast<size_t>(key)];
    score = p.score(row, key, score);
  }
  fill_from_scores(std::move(scores), *p.of_keys(1, p.v, row, p.value_features), out);
}

double attention_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t result, int64_t index) {
  const Problem p(e, id, graph.node(id), 0, graph.node(id).operands[3]);
  const int64_t row = result == 0 ? index / p.value_features : index;
  const auto values = e.scratch(id, row, static_cast<size_t>(p.value_features) + 1,
                                [&](std::span<double> out) { fill_output_row(p, row, out); });
  return result == 0 ? values[static_cast<size_t>(index % p.value_features)] : values.back();
}

/// The scores of a query row with all keys.
std::span<const double> scores_of_row(ElementEvaluator& e, const Graph& graph, NodeId id, int64_t row) {
  const Node& node = graph.node(id);
  const ValueId q = node.operands[0], k = node.operands[1];
  const std::vector<int64_t>&of_q = e.extents(q), &of_k = e.extents(k);
  const int64_t features = of_q[3], keys = of_k[2];
  return e.scratch(id, row, static_cast<size_t>(keys), [&](std::span<double> out) {
    const int64_t head = row / of_q[2] / (of_q[1] / of_k[1]);  // of all batches' heads of keys
    const auto matrix = e.matrix(0, k, head * keys * features, keys, features);
    row_products(e.line(0, {q, row * features, 1, features}).data(), 1, matrix->data(), out.size(),
                 static_cast<size_t>(features), out.data());
    for (double& score : out) score *= number_of(node.attributes, "scale");
  });
}

double scores_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const int64_t keys = e.extents(graph.node(id).results[0])[3];
  return scores_of_row(e, graph, id, index / keys)[static_cast<size_t>(index % keys)];
}

void scores_elements(ElementEvaluator& e, const Graph& graph, NodeId id, std::span<const int64_t> indices,
                     std::span<double> out) {
  const int64_t keys = e.extents(graph.node(id).results[0])[3];
  int64_t row = -1;
  std::span<const double> scores;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] / keys != row) scores = scores_of_row(e, graph, id, row = indices[i] / keys);
    out[i] = scores[static_cast<size_t>(indices[i] % keys)];
  }
}

double of_scores_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t result, int64_t index) {
  const Node& node = graph.node(id);
  const ValueId scores = node.operands[0], v = node.operands[1];
  const std::vector<int64_t>&extents = e.extents(scores), &of_v = e.extents(v);
  const int64_t queries = extents[2], keys = extents[3], width = of_v[3], row = result == 0 ? index / width : index;
  const auto fill = [&](std::span<double> out) {
    const bool causal = boolean_of(node.attributes, "causal");
    const int64_t offset = integer_of(node.attributes, "causal_offset");
    const int64_t kept = causal ? kept_of_causal(keys, row % queries, offset) : keys;
    std::vector<double> row_scores(static_cast<size_t>(keys), -k_infinity);
    std::vector<int64_t> indices(static_cast<size_t>(kept));
    std::iota(indices.begin(), indices.end(), row * keys);
    e.many(scores, indices, row_scores);
    const int64_t head = row / queries / (extents[1] / of_v[1]);
    fill_from_scores(std::move(row_scores), *e.matrix(1, v, head * keys * width, keys, width), out);
  };
  const auto values = e.scratch(id, row, static_cast<size_t>(width) + 1, fill);
  return result == 0 ? values[static_cast<size_t>(index % width)] : values.back();
}

/// What the backward pass knows of one (query, key) pair.
struct Pair {
  double probability, score_gradient;
};

/// Rows of scratch: dq's are the query rows, dk and dv share -1 - key row, Σ grad_out out of a query row follows dq's.
int64_t key_gradient_row(int64_t key_row) { return -1 - key_row; }
int64_t delta_row(const Problem& p, int64_t row) { return p.e.elements(p.q) + row; }

double delta_of(const Problem& p, const Node& node, int64_t row) {
  return p.e.scratch(p.id, delta_row(p, row), 1, [&](std::span<double> sum) {
    sum[0] = p.dot(node.operands[0], row, node.operands[4], row, p.value_features);
  })[0];
}

/// The probability of a key and the gradient of its score, from `product` (Q · K) and `from_value` (grad_out · V).
Pair backward_pair(const Problem& p, const Node& node, int64_t row, int64_t key, double product, double from_value) {
  const double score = p.score(row, key, product), lse = p.e.at(node.operands[5], row);
  if (score == -k_infinity || lse == -k_infinity) return {0, 0};
  const double probability = std::exp(score - lse);
  return {probability, probability * (from_value - delta_of(p, node, row))};
}

void fill_query_gradient(const Problem& p, const Node& node, int64_t row, std::span<double> dq) {
  const auto keys = p.of_keys(0, p.k, row, p.features);
  const auto values = p.of_keys(1, p.v, row, p.value_features);
  std::vector<double> slopes = products_with(p.row_of(p.q, row, p.features), *keys, p.keys);
  const auto from_values = products_with(p.row_of(node.operands[0], row, p.value_features), *values, p.keys);
  p.prepare_biases(p.kept(row), [&](int64_t key) { return p.bias_index(row, key); });
  for (int64_t key = 0; key < p.keys; ++key) {
    double& slope = slopes[static_cast<size_t>(key)];
    const Pair pair = backward_pair(p, node, row, key, slope, from_values[static_cast<size_t>(key)]);
    slope = pair.score_gradient * p.scale;
  }
  add_weighted_rows(slopes, keys->data(), dq);
}

/// dk, then dv, of one key row: over all queries of the heads that share it.
void fill_key_gradient(const Problem& p, const Node& node, int64_t key_row, std::span<double> dk_dv) {
  const int64_t batch = key_row / (p.kv_heads * p.keys), kv_head = key_row / p.keys % p.kv_heads;
  const int64_t first = (batch * p.heads + kv_head * p.group) * p.queries, rows = p.group * p.queries;
  const auto queries = p.e.matrix(2, p.q, first * p.features, rows, p.features);
  const auto grads = p.e.matrix(3, node.operands[0], first * p.value_features, rows, p.value_features);
  std::vector<double> slopes = products_with(p.row_of(p.k, key_row, p.features), *queries, rows);
  std::vector<double> weights = products_with(p.row_of(p.v, key_row, p.value_features), *grads, rows);
  p.prepare_biases(rows, [&](int64_t i) { return p.bias_index(first + i, key_row % p.keys); });
  for (int64_t i = 0; i < rows; ++i) {
    double &slope = slopes[static_cast<size_t>(i)], &weight = weights[static_cast<size_t>(i)];
    const Pair pair = backward_pair(p, node, first + i, key_row % p.keys, slope, weight);
    slope = pair.probability == 0 ? 0 : pair.score_gradient * p.scale;
    weight = pair.probability;
  }
  add_weighted_rows(slopes, queries->data(), dk_dv.first(static_cast<size_t>(p.features)));
  add_weighted_rows(weights, grads->data(), dk_dv.subspan(static_cast<size_t>(p.features)));
}

double attention_backward_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t result, int64_t index) {
  const Node& node = graph.node(id);
  const Problem p(e, id, node, 1, node.operands[6]);
  if (result == 0) {
    const int64_t row = index / p.features;
    return e.scratch(id, row, static_cast<size_t>(p.features), [&](std::span<double> out) {
      fill_query_gradient(p, node, row, out);
    })[static_cast<size_t>(index % p.features)];
  }
  const int64_t width = result == 1 ? p.features : p.value_features, row = index / width;
  const auto gradients = e.scratch(id, key_gradient_row(row), static_cast<size_t>(p.features + p.value_features),
                                   [&](std::span<double> out) { fill_key_gradient(p, node, row, out); });
  return gradients[static_cast<size_t>((result == 1 ? 0 : p.features) + index % width)];
}

// --- decomposition -----------------------------------------------------------------------------------------------------

/// (B, kv heads, S, D) repeated to (B, heads, S, D).
ValueId repeat_heads(GraphBuilder& b, ValueId x, const Dim& heads) {
  if (!b.status().ok()) return k_none;
  const Shape shape = b.shape(x);
  if (shape[1] == heads) return x;
  const Dim group = *heads.divided_by(shape[1]);
  const ValueId apart = b.expand(b.unsqueeze(x, 2), {shape[0], shape[1], group, shape[2], shape[3]});
  return b.reshape(apart, {shape[0], heads, shape[2], shape[3]});
}

/// (B, heads, S, D) summed to (B, kv heads, S, D).
ValueId sum_heads(GraphBuilder& b, ValueId x, const Dim& kv_heads) {
  if (!b.status().ok()) return k_none;
  const Shape shape = b.shape(x);
  if (shape[1] == kv_heads) return x;
  return b.sum(b.reshape(x, {shape[0], kv_heads, *shape[1].divided_by(kv_heads), shape[2], shape[3]}), {2});
}

/// (B, H, Q, K). `q` and `k` have equal heads.
ValueId scaled_products(GraphBuilder& b, const Node& node, ValueId q, ValueId k) {
  return b.mul(b.matmul(q, b.transpose(k)), number_of(node.attributes, "scale"));
}

/// -inf where a key is not kept.
ValueId masked(GraphBuilder& b, const Node& node, ValueId score) {
  if (!boolean_of(node.attributes, "causal") || !b.status().ok()) return score;
  const Shape matrix(b.shape(score).end() - 2, b.shape(score).end());
  const ValueId ahead = b.sub(b.iota(matrix, 1), b.iota(matrix, 0));
  const auto offset = static_cast<double>(integer_of(node.attributes, "causal_offset"));
  return b.select(b.compare("le", ahead, offset), score, b.constant(-k_infinity, score));
}

ValueId scores(GraphBuilder& b, const Node& node, ValueId q, ValueId k, ValueId bias) {
  const ValueId products = scaled_products(b, node, q, k);
  return masked(b, node, bias == k_none ? products : b.add(products, b.widen(bias)));
}

/// out and lse of scores that are masked; `values` is v as it was given.
Gradients of_masked(GraphBuilder& b, ValueId score, ValueId values) {
  if (!b.status().ok()) return b.status();
  const ValueId v = repeat_heads(b, b.widen(values), b.shape(score)[1]);
  const ValueId largest = b.amax(score, {3}, true);
  const ValueId shift = b.select(b.compare("eq", largest, -k_infinity), b.constant(0, largest), largest);
  const ValueId weights = b.exp(b.sub(score, shift));
  const ValueId sum = b.sum(weights, {3}, true);
  const ValueId divisor = b.select(b.compare("eq", sum, 0), b.constant(1, sum), sum);  // no key: zeros
  const ValueId out = b.div(b.matmul(weights, v), divisor);
  const ValueId lse = b.squeeze(b.add(b.log(sum), shift), 3);
  return b.finish({b.cast(out, b.dtype(values)), lse});
}

Gradients decompose_attention(GraphBuilder& b, const Node& node, Values in) {
  const ValueId k = repeat_heads(b, b.widen(in[1]), b.shape(in[0])[1]);
  return of_masked(b, scores(b, node, b.widen(in[0]), k, in[3]), in[2]);
}

Gradients decompose_scores(GraphBuilder& b, const Node& node, Values in) {
  const ValueId k = repeat_heads(b, b.widen(in[1]), b.shape(in[0])[1]);
  return b.finish({scaled_products(b, node, b.widen(in[0]), k)});
}

Gradients decompose_of_scores(GraphBuilder& b, const Node& node, Values in) {
  return of_masked(b, masked(b, node, b.widen(in[0])), in[1]);
}

struct ScoreGradient {
  ValueId q, k, probability, scores;  // q and k wide, k with q's heads
};

/// p * (grad_out V^T - Σ grad_out out), plus what comes through lse.
ScoreGradient score_gradient(GraphBuilder& b, const Node& node, Values grad_q_k_v_out_lse, ValueId bias,
                             ValueId grad_lse) {
  const Values in = grad_q_k_v_out_lse;
  const Dim heads = b.shape(in[1])[1];
  ScoreGradient result{};
  result.q = b.widen(in[1]);
  result.k = repeat_heads(b, b.widen(in[2]), heads);
  const ValueId v = repeat_heads(b, b.widen(in[3]), heads);
  const ValueId score = scores(b, node, result.q, result.k, bias);
  const ValueId lse = b.unsqueeze(in[5], 3);
  const ValueId dropped = b.op("bitwise_or", {b.compare("eq", score, -k_infinity), b.compare("eq", lse, -k_infinity)});
  const ValueId safe = b.select(dropped, b.constant(0, score), b.sub(score, lse));
  result.probability = b.select(dropped, b.constant(0, score), b.exp(safe));
  const ValueId grad = b.widen(in[0]);
  ValueId delta = b.sum(b.mul(grad, b.widen(in[4])), {3}, true);
  if (grad_lse != k_none) delta = b.sub(delta, b.unsqueeze(grad_lse, 3));
  result.scores = b.mul(result.probability, b.sub(b.matmul(grad, b.transpose(v)), delta));
  return result;
}

std::vector<ValueId> operand_gradients(GraphBuilder& b, const Node& node, const ScoreGradient& g, Values in) {
  if (!b.status().ok()) return {k_none, k_none, k_none};
  const double scale = number_of(node.attributes, "scale");
  const Dim kv_heads = b.shape(in[2])[1];
  const DType dtype = b.dtype(in[1]);
  const ValueId dq = b.mul(b.matmul(g.scores, g.k), scale);
  const ValueId dk = sum_heads(b, b.mul(b.matmul(b.transpose(g.scores), g.q), scale), kv_heads);
  const ValueId dv = sum_heads(b, b.matmul(b.transpose(g.probability), b.widen(in[0])), kv_heads);
  return {b.cast(dq, dtype), b.cast(dk, dtype), b.cast(dv, dtype)};
}

Gradients decompose_attention_backward(GraphBuilder& b, const Node& node, Values in) {
  const ScoreGradient g = score_gradient(b, node, in.first(6), in[6], k_none);
  return b.finish(operand_gradients(b, node, g, in));
}

/// The backward op, unless lse has a gradient too; the bias's gradient comes from the decomposition, and is dead code
/// where nobody asks for it.
Gradients attention_gradient(GraphBuilder& b, const Node& node, Values in, Values out, Values g) {
  const ValueId grad_out = g[0] != k_none ? g[0] : b.full(b.shape(out[0]), 0, b.dtype(out[0]));
  const ValueId backward[] = {grad_out, in[0], in[1], in[2], out[0], out[1], in[3]};
  const bool apart = g[1] != k_none || in[3] != k_none;
  ScoreGradient score{};
  if (apart) score = score_gradient(b, node, Values(backward).first(6), in[3], g[1]);
  std::vector<ValueId> gradients = g[1] != k_none ? operand_gradients(b, node, score, backward)
                                                  : b.ops("attention_backward", backward, node.attributes);
  gradients.push_back(in[3] == k_none ? k_none : b.cast(score.scores, b.dtype(in[3])));
  return b.finish(std::move(gradients));
}

}  // namespace

std::span<const OpDef> attention_ops() {
  static const AttributeDef scale = required("scale", AttributeType::number);
  static const std::vector<AttributeDef> mask = {fallback("causal", AttributeType::boolean, false),
                                                 fallback("causal_offset", AttributeType::integer, int64_t{0})};
  static const std::vector<AttributeDef> attributes = {mask[0], mask[1], scale};
  static const OperandDef bias = {"bias", OperandKind::optional};
  static const std::vector<OpDef> rows = {
      {.name = "attention",
       .kind = OpKind::attention,
       .operands = {{"q"}, {"k"}, {"v"}, bias},
       .attributes = attributes,
       .result_count = 2,
       .infer = infer_attention,
       .element = attention_element,
       .decompose = decompose_attention,
       .gradient = attention_gradient},
      {.name = "attention_backward",
       .kind = OpKind::attention,
       .operands = {{"grad_out"}, {"q"}, {"k"}, {"v"}, {"out"}, {"lse"}, bias},
       .attributes = attributes,
       .result_count = 3,
       .infer = infer_attention_backward,
       .element = attention_backward_element,
       .decompose = decompose_attention_backward},
      {.name = "attention_scores",
       .kind = OpKind::attention,
       .operands = {{"q"}, {"k"}},
       .attributes = {scale},
       .infer = infer_scores,
       .element = scores_element,
       .elements = scores_elements,
       .decompose = decompose_scores},
      {.name = "attention_of_scores",
       .kind = OpKind::attention,
       .operands = {{"scores"}, {"v"}},
       .attributes = mask,
       .result_count = 2,
       .infer = infer_of_scores,
       .element = of_scores_element,
       .decompose = decompose_of_scores},
  };
  return rows;
}

}  // namespace kiln
