#include <cmath>

#include "backends/reference/body_runner.h"
#include "backends/reference/kernels.h"

namespace kiln {
namespace {

/// Scores of attention and the tensors around them, element by element.
class AttentionView {
 public:
  AttentionView(const KernelSpec& spec, const AttentionSpec& attention, std::span<void* const> buffers)
      : m_spec(spec), m_attention(attention), m_buffers(buffers), m_score(spec, attention.score, buffers) {
    if (attention.score_value != k_no_expr) m_order = m_score.order_for(std::span(&attention.score_value, 1));
  }

  double load(const Access& access, std::initializer_list<int64_t> point) const {
    return load_number(dtype(access), m_buffers[access.buffer], plain_address(access, {point.begin(), point.end()}))
        .real;
  }
  void store(const Access& access, std::initializer_list<int64_t> point, double value) const {
    store_number(dtype(access), m_buffers[access.buffer], plain_address(access, {point.begin(), point.end()}),
                 {value, 0});
  }

  int64_t kv_head(int64_t head) const { return head / (m_attention.heads / m_attention.kv_heads); }
  bool is_kept(int64_t q, int64_t k) const { return !m_attention.causal || k <= q + m_attention.causal_offset; }

  /// scale * q·k through the score expression.
  double score(int64_t b, int64_t h, int64_t q, int64_t k) {
    double dot = 0;
    for (int64_t d = 0; d < m_attention.head_dim; ++d) {
      dot += load(m_attention.q, {b, h, q, d}) * load(m_attention.k, {b, kv_head(h), k, d});
    }
    const double scaled = m_attention.scale * dot;
    if (m_attention.score_value == k_no_expr) return scaled;
    m_score.set_accumulator({scaled, 0});
    const int64_t point[] = {b, h, q, k};
    m_score.evaluate(m_order, point);
    return m_score.value(m_attention.score_value).real;
  }

  bool index_out_of_range() const { return m_score.index_out_of_range(); }

 private:
  DType dtype(const Access& access) const { return m_spec.buffers[access.buffer].dtype; }

  const KernelSpec& m_spec;
  const AttentionSpec& m_attention;
  std::span<void* const> m_buffers;
  BodyRunner m_score;
  std::vector<ExprId> m_order;
};

void attend_row(AttentionView& view, const AttentionSpec& a, int64_t b, int64_t h, int64_t q) {
  std::vector<double> scores(static_cast<size_t>(a.k_len), -INFINITY);
  double highest = -INFINITY;
  for (int64_t k = 0; k < a.k_len; ++k) {
    if (!view.is_kept(q, k)) continue;
    const double score = view.score(b, h, q, k);
    scores[static_cast<size_t>(k)] = score;
    // NaN must win, as in every maximum.
    if (std::isnan(score) || score > highest) highest = score;
  }
  const bool is_empty = highest == -INFINITY;
  double sum = 0;
  for (double& score : scores) sum += score = is_empty ? 0 : std::exp(score - highest);
  for (int64_t d = 0; d < a.value_dim; ++d) {
    double total = 0;
    for (int64_t k = 0; k < a.k_len; ++k) {
      // A key the mask took away contributes nothing, whatever its value holds.
      if (!is_empty && view.is_kept(q, k)) {
        total += scores[static_cast<size_t>(k)] * view.load(a.v, {b, view.kv_head(h), k, d});
      }
    }
    view.store(a.out, {b, h, q, d}, is_empty ? 0 : total / sum);
  }
  view.store(a.lse, {b, h, q}, is_empty ? -INFINITY : highest + std::log(sum));
}

/// Gradients of the keys and values that one group of heads shares, kept in f64 until all queries have been
/// seen.
struct SharedGradients {
  std::vector<double> k, v;
};

void backward_row(AttentionView& view, const AttentionBackwardSpec& spec, SharedGradients& shared, int64_t b, int64_t h,
                  int64_t q) {
  const AttentionSpec& a = spec.forward;
  const int64_t kv = view.kv_head(h);
  const double lse = view.load(a.lse, {b, h, q});
  double delta = 0;  // Σ_d grad_out * out = Σ_k p * dp
  for (int64_t d = 0; d < a.value_dim; ++d) {
    delta += view.load(spec.grad_out, {b, h, q, d}) * view.load(a.out, {b, h, q, d});
  }
  std::vector<double> grad_q(static_cast<size_t>(a.head_dim), 0);
  for (int64_t k = 0; k < a.k_len; ++k) {
    if (!view.is_kept(q, k) || lse == -INFINITY) continue;
    const double p = std::exp(view.score(b, h, q, k) - lse);
    double grad_p = 0;
    for (int64_t d = 0; d < a.value_dim; ++d) {
      const double grad_out = view.load(spec.grad_out, {b, h, q, d});
      grad_p += grad_out * view.load(a.v, {b, kv, k, d});
      shared.v[static_cast<size_t>(k * a.value_dim + d)] += p * grad_out;
    }
    const double grad_score = p * (grad_p - delta) * a.scale;
    for (int64_t d = 0; d < a.head_dim; ++d) {
      grad_q[static_cast<size_t>(d)] += grad_score * view.load(a.k, {b, kv, k, d});
      shared.k[static_cast<size_t>(k * a.head_dim + d)] += grad_score * view.load(a.q, {b, h, q, d});
    }
  }
  for (int64_t d = 0; d < a.head_dim; ++d) {
    view.store(spec.grad_q, {b, h, q, d}, grad_q[static_cast<size_t>(d)]);
  }
}

}  // namespace

bool run_kernel(const KernelSpec& spec, const AttentionSpec& a, std::span<void* const> buffers) {
  AttentionView view(spec, a, buffers);
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t q = 0; q < a.q_len; ++q) attend_row(view, a, b, h, q);
    }
  }
  return !view.index_out_of_range();
}

bool run_kernel(const KernelSpec& spec, const AttentionBackwardSpec& backward, std::span<void* const> buffers) {
  const AttentionSpec& a = backward.forward;
  AttentionView view(spec, a, buffers);
  const int64_t group = a.heads / a.kv_heads;
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t kv = 0; kv < a.kv_heads; ++kv) {
      SharedGradients shared{std::vector<double>(static_cast<size_t>(a.k_len * a.head_dim), 0),
                             std::vector<double>(static_cast<size_t>(a.k_len * a.value_dim), 0)};
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        for (int64_t q = 0; q < a.q_len; ++q) backward_row(view, backward, shared, b, h, q);
      }
      for (int64_t k = 0; k < a.k_len; ++k) {
        for (int64_t d = 0; d < a.head_dim; ++d) {
          view.store(backward.grad_k, {b, kv, k, d}, shared.k[static_cast<size_t>(k * a.head_dim + d)]);
        }
        for (int64_t d = 0; d < a.value_dim; ++d) {
          view.store(backward.grad_v, {b, kv, k, d}, shared.v[static_cast<size_t>(k * a.value_dim + d)]);
        }
      }
    }
  }
  return !view.index_out_of_range();
}

}  // namespace kiln
