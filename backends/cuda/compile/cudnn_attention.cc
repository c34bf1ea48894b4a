#include "backends/cuda/compile/cudnn_attention.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace kiln::cuda {
namespace {

constexpr uint32_t k_most_attention_plans = 2;
constexpr int64_t k_most_planned_depth = 256;
constexpr uint64_t k_piece_bytes = 16;

/// Whether every row is whole pieces of 16 bytes, wherever it begins.
bool has_pieces(const KernelSpec& spec, const Access& access, DType dtype, const std::vector<int64_t>& extents) {
  const int64_t step = static_cast<int64_t>(k_piece_bytes / size_of(dtype));
  if (spec.buffers[access.buffer].dtype != dtype || access.offset % step != 0 || access.strides.back() != 1)
    return false;
  for (size_t d = 0; d + 1 < extents.size(); ++d) {
    if (extents[d] > 1 && (access.strides[d] <= 0 || access.strides[d] % step != 0)) return false;
  }
  return true;
}

/// Of statistics only the start matters: they are read one by one.
bool has_statistics(const KernelSpec& spec, const Access& access) {
  return spec.buffers[access.buffer].dtype == DType::f32 && access.offset % 4 == 0 &&
         std::ranges::all_of(access.strides, [](int64_t stride) { return stride > 0; });
}

bool has_layout(const AttentionProblem& problem) {
  const AttentionSpec& a = *problem.forward;
  const auto is_good = [&](const Access& access, bool is_of_queries, int64_t width) {
    return has_pieces(*problem.spec, access, a.dtype,
                      {a.batch, is_of_queries ? a.heads : a.kv_heads, is_of_queries ? a.q_len : a.k_len, width});
  };
  bool is_whole = is_good(a.q, true, a.head_dim) && is_good(a.k, false, a.head_dim) &&
                  is_good(a.v, false, a.value_dim) && is_good(a.out, true, a.value_dim) &&
                  has_statistics(*problem.spec, a.lse);
  if (problem.backward != nullptr) {
    is_whole = is_whole && is_good(problem.backward->grad_out, true, a.value_dim) &&
               is_good(problem.backward->grad_q, true, a.head_dim) &&
               is_good(problem.backward->grad_k, false, a.head_dim) &&
               is_good(problem.backward->grad_v, false, a.value_dim);
  }
  return is_whole;
}

/// Whether its graphs say what the spec says. Their mask leaves out keys that come later than the query, both counted from
/// the first.
bool says(const AttentionProblem& problem) {
  const AttentionSpec& a = *problem.forward;
  const bool has_depth =
      a.head_dim % 8 == 0 && a.value_dim % 8 == 0 && std::max(a.head_dim, a.value_dim) <= k_most_planned_depth;
  return is_half(a.dtype) && has_depth && a.score_value == k_no_expr && (!a.causal || a.causal_offset == 0) &&
         has_layout(problem);
}

/// Attention as a graph. The ops, and the order in which they come, are the pattern that cuDNN's engines know (its developer
/// guide, "Fused attention").
class AttentionGraph {
 public:
  AttentionGraph(CudnnPlanner& planner, const AttentionProblem& problem)
      : m_problem(problem), m_attention(*problem.forward), m_planner(planner), m_graph(planner.graph()) {}

  void write() { m_problem.backward == nullptr ? write_forward() : write_backward(); }

 private:
  void write_forward() {
    const AttentionSpec& a = m_attention;
    const CudnnTensor q = queries(a.q, a.head_dim), k = keys_across(a.k, a.head_dim), v = keys(a.v, a.value_dim);
    const CudnnTensor out = queries(a.out, a.value_dim);
    const CudnnTensor scores = masked(scaled(m_graph.product(q, k, DType::f32)));
    const CudnnTensor highest = m_graph.reduced(CudnnSum::maximum, scores);
    const CudnnTensor powers = m_graph.pointwise(CudnnMode::exp, m_graph.pointwise(CudnnMode::sub, scores, highest));
    const CudnnTensor sums = m_graph.reduced(CudnnSum::sum, powers);
    m_graph.pointwise(CudnnMode::add, highest, m_graph.pointwise(CudnnMode::log, sums), statistics());
    m_graph.product(m_graph.pointwise(CudnnMode::div, powers, sums, a.dtype), v, out);
  }

  /// Gradients of queries come out of one product over all keys, whose other factor is kept whole: summed in f32 instead, in the order
  /// in which blocks end, they would have other bits each time.
  void write_backward() {
    const AttentionSpec& a = m_attention;
    const AttentionBackwardSpec& b = *m_problem.backward;
    const CudnnTensor q = queries(a.q, a.head_dim), k = keys_across(a.k, a.head_dim), v = keys_across(a.v, a.value_dim);
    const CudnnTensor out = queries(a.out, a.value_dim), grad_out = queries(b.grad_out, a.value_dim);

    const CudnnTensor parts = m_graph.pointwise(CudnnMode::mul, grad_out, out);
    const CudnnTensor delta = m_planner.workspace({a.batch, a.heads, a.q_len, 1});
    m_graph.pointwise(CudnnMode::mul, m_graph.reduced(CudnnSum::sum, parts), m_planner.number(1), delta);

    const CudnnTensor scores = scaled(m_graph.product(q, k, DType::f32));
    const CudnnTensor shifted = masked(m_graph.pointwise(CudnnMode::sub, scores, statistics()));
    const CudnnTensor chances = m_graph.pointwise(CudnnMode::exp, shifted);
    product_of_keys(m_graph.transposed(chances, a.dtype), grad_out, keys(b.grad_v, a.value_dim));

    const CudnnTensor slopes = m_graph.pointwise(CudnnMode::sub, m_graph.product(grad_out, v, DType::f32), delta);
    const CudnnTensor grad_scores = scaled(m_graph.pointwise(CudnnMode::mul, slopes, chances));
    product_of_keys(m_graph.transposed(grad_scores, a.dtype), q, keys(b.grad_k, a.head_dim));
    m_graph.product(grad_scores, m_graph.transposed(k, a.dtype), queries(b.grad_q, a.head_dim));
  }

  /// Heads that share keys are summed.
  void product_of_keys(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& to) {
    if (m_attention.heads == m_attention.kv_heads) return m_graph.product(a, b, to);
    m_graph.reduced(CudnnSum::sum, m_graph.product(a, b, m_attention.dtype), to);
  }

  CudnnTensor scaled(const CudnnTensor& x) {
    if (!m_scale.object) m_scale = m_planner.number(static_cast<float>(m_attention.scale));
    return m_graph.pointwise(CudnnMode::mul, x, m_scale);
  }

  CudnnTensor masked(const CudnnTensor& x) {
    if (!m_attention.causal) return x;
    return m_graph.where_not_below(x, m_planner.number(std::numeric_limits<float>::lowest()), 2, 3);
  }

  CudnnTensor queries(const Access& access, int64_t width) {
    const AttentionSpec& a = m_attention;
    return memory(access, a.dtype, {a.batch, a.heads, a.q_len, width}, access.strides);
  }
  CudnnTensor keys(const Access& access, int64_t width) {
    const AttentionSpec& a = m_attention;
    return memory(access, a.dtype, {a.batch, a.kv_heads, a.k_len, width}, access.strides);
  }
  /// [batch, heads, width, keys]
  CudnnTensor keys_across(const Access& access, int64_t width) {
    const AttentionSpec& a = m_attention;
    return memory(access, a.dtype, {a.batch, a.kv_heads, width, a.k_len}, exchanged(access.strides));
  }
  CudnnTensor statistics() {
    const AttentionSpec& a = m_attention;
    std::vector<int64_t> strides = a.lse.strides;
    strides.push_back(1);
    return memory(a.lse, DType::f32, {a.batch, a.heads, a.q_len, 1}, std::move(strides));
  }

  CudnnTensor memory(const Access& access, DType dtype, std::vector<int64_t> extents, std::vector<int64_t> strides) {
    return m_planner.memory(access.buffer, access.offset, dtype, std::move(extents), std::move(strides));
  }

  const AttentionProblem& m_problem;
  const AttentionSpec& m_attention;
  CudnnPlanner& m_planner;
  CudnnGraph& m_graph;
  CudnnTensor m_scale;
};

}  // namespace

const Cudnn* cudnn_for(const AttentionProblem& problem, const CudaTarget& target) {
  return says(problem) ? cudnn_on(target) : nullptr;
}

std::vector<Schedule> cudnn_attention_schedules() { return schedules_of_choices<CudnnChoice>(k_most_attention_plans); }

Expected<CudnnPlan> cudnn_plan(const AttentionProblem& problem, const CudnnChoice& choice, const CudaTarget& target) {
  const Cudnn* cudnn = cudnn_for(problem, target);
  if (cudnn == nullptr) return error(StatusCode::failed_precondition, "cudnn: not here, or not for such attention");
  CudnnPlanner planner(*cudnn, target);
  AttentionGraph(planner, problem).write();
  return planner.plan(choice, std::array{CudnnNote::nondeterministic});
}

}  // namespace kiln::cuda
