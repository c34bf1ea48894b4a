#include "backends/cuda/compile/cudnn_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "backends/cuda/compile/cudnn_graph.h"
#include "backends/cuda/compile/null_driver.h"
#include "backends/cuda/compile/nvrtc.h"
#include "backends/cuda/compile/texts.h"
#include "backends/cuda/cudnn/plan.h"
#include "base/limits.h"

namespace kiln::cuda {
namespace {

constexpr uint32_t k_most_choices = 2;
constexpr size_t k_most_proposals = 16;
constexpr size_t k_most_notes = 16;
constexpr int64_t k_most_planned_depth = 256;
constexpr uint64_t k_piece_bytes = 16;
constexpr int k_heuristic_a = 3;            // CUDNN_HEUR_MODE_A
constexpr int k_note_nondeterministic = 4;  // CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC

/// The usual device of a target; empty where none is described.
std::string_view device_text(const CudaTarget& target) { return target.name == "sm_90a" ? cudnn_sm_90a_text : ""; }

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

/// Attention as a graph, and what its tensors are at a launch. The ops, and the order in which they come, are the pattern
/// that cuDNN's engines know (its developer guide, "Fused attention").
class AttentionGraph {
 public:
  AttentionGraph(const Cudnn& cudnn, const AttentionProblem& problem)
      : m_problem(problem), m_attention(*problem.forward), m_graph(cudnn) {}

  Expected<CudnnObject> write() {
    if (m_problem.backward == nullptr) {
      write_forward();
    } else {
      write_backward();
    }
    return m_graph.finalise();
  }
  const std::vector<PlanTensor>& tensors() const { return m_tensors; }
  /// Of tensors; what the plan itself needs comes before.
  uint64_t workspace_bytes() const { return m_workspace_bytes; }

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
    const CudnnTensor delta = workspace({a.batch, a.heads, a.q_len, 1});
    m_graph.pointwise(CudnnMode::mul, m_graph.reduced(CudnnSum::sum, parts), number(1), delta);

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
    if (!m_scale.object) m_scale = number(static_cast<float>(m_attention.scale));
    return m_graph.pointwise(CudnnMode::mul, x, m_scale);
  }

  CudnnTensor masked(const CudnnTensor& x) {
    if (!m_attention.causal) return x;
    return m_graph.where_not_below(x, number(std::numeric_limits<float>::lowest()), 2, 3);
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
    const int64_t name = add({.place = PlanTensor::Place::buffer,
                              .buffer = access.buffer,
                              .offset_bytes = static_cast<uint64_t>(access.offset) * size_of(dtype)});
    return m_graph.memory(name, dtype, std::move(extents), std::move(strides));
  }
  CudnnTensor workspace(const std::vector<int64_t>& extents) {
    const int64_t name = add({.place = PlanTensor::Place::workspace, .offset_bytes = m_workspace_bytes});
    int64_t elements = 1;
    for (const int64_t extent : extents) elements *= extent;
    m_workspace_bytes += (static_cast<uint64_t>(elements) * sizeof(float) + 255) / 256 * 256;
    return m_graph.memory(name, DType::f32, extents, {extents[1] * extents[2], extents[2], 1, 1});
  }
  CudnnTensor number(float value) {
    return m_graph.constant(add({.place = PlanTensor::Place::number, .value = value}));
  }

  int64_t add(PlanTensor tensor) {
    tensor.number = static_cast<int64_t>(m_tensors.size()) + 1;
    m_tensors.push_back(tensor);
    return tensor.number;
  }

  const AttentionProblem& m_problem;
  const AttentionSpec& m_attention;
  CudnnGraph m_graph;
  CudnnTensor m_scale;
  std::vector<PlanTensor> m_tensors;
  uint64_t m_workspace_bytes = 0;
};

/// An engine with its choices, as cuDNN proposes it.
struct Proposal {
  CudnnObject choice;
  int64_t engine = 0;
};

/// Best first; none whose bits change from launch to launch.
Expected<std::vector<Proposal>> proposals(const Cudnn& cudnn, const CudnnObject& graph, const CudnnObject& device) {
  CudnnObject heuristic(cudnn, CudnnKind::heuristic);
  heuristic.set(CudnnAttribute::heuristic_graph, CudnnValue::descriptor, graph.get());
  heuristic.set(CudnnAttribute::heuristic_mode, CudnnValue::heuristic_mode, k_heuristic_a);
  heuristic.set(CudnnAttribute::heuristic_device, CudnnValue::descriptor, device.get());
  KILN_RETURN_IF_ERROR(heuristic.finalise("what is proposed"));
  std::vector<CudnnObject> choices;
  for (size_t i = 0; i < k_most_proposals; ++i) choices.emplace_back(cudnn, CudnnKind::engine_choice);
  KILN_ASSIGN_OR_RETURN(const size_t count, heuristic.read_into(CudnnAttribute::heuristic_results, choices));
  choices.erase(choices.begin() + static_cast<long>(count), choices.end());
  std::vector<Proposal> result;
  for (CudnnObject& choice : choices) {
    std::vector<CudnnObject> engine;
    engine.emplace_back(cudnn, CudnnKind::engine);
    KILN_RETURN_IF_ERROR(choice.read_into(CudnnAttribute::choice_engine, engine).status());
    KILN_ASSIGN_OR_RETURN(const int64_t index, engine.front().number(CudnnAttribute::engine_index));
    const std::vector<int> notes =
        engine.front().numbers(CudnnAttribute::engine_numerical_notes, CudnnValue::numerical_note, k_most_notes);
    if (std::ranges::find(notes, k_note_nondeterministic) == notes.end()) result.push_back({std::move(choice), index});
  }
  return result;
}

Expected<CudnnObject> finished_plan(const Cudnn& cudnn, const CudnnObject& choice, const CudnnObject& device) {
  CudnnObject plan(cudnn, CudnnKind::plan);
  plan.set(CudnnAttribute::plan_choice, CudnnValue::descriptor, choice.get());
  plan.set(CudnnAttribute::plan_device, CudnnValue::descriptor, device.get());
  KILN_RETURN_IF_ERROR(plan.finalise("a plan"));
  return plan;
}

}  // namespace

const Cudnn* cudnn_for(const AttentionProblem& problem, const CudaTarget& target) {
  if (device_text(target).empty() || !says(problem)) return nullptr;
  const Expected<Cudnn>& cudnn = Cudnn::of_process();
  return cudnn.ok() ? &*cudnn : nullptr;
}

std::vector<Schedule> cudnn_schedules() { return schedules_of_choices<CudnnChoice>(k_most_choices); }

Expected<CudnnPlan> cudnn_plan(const AttentionProblem& problem, const CudnnChoice& choice, const CudaTarget& target) {
  const Cudnn* cudnn = cudnn_for(problem, target);
  if (cudnn == nullptr) return error(StatusCode::failed_precondition, "cudnn: not here, or not for such attention");
  // It looks for the compiler by its bare name.
  KILN_RETURN_IF_ERROR(Nvrtc::of_process().status());
  KILN_RETURN_IF_ERROR(ensure_driver());
  KILN_ASSIGN_OR_RETURN(const CudnnObject device, described_device(*cudnn, device_text(target)));
  AttentionGraph writer(*cudnn, problem);
  KILN_ASSIGN_OR_RETURN(const CudnnObject graph, writer.write());
  KILN_ASSIGN_OR_RETURN(const std::vector<Proposal> proposed, proposals(*cudnn, graph, device));
  if (choice.place >= proposed.size()) {
    return error(StatusCode::unimplemented, "cudnn: {} plans are proposed, none at place {}", proposed.size(),
                 choice.place + 1);
  }
  KILN_ASSIGN_OR_RETURN(const CudnnObject plan, finished_plan(*cudnn, proposed[choice.place].choice, device));
  KILN_ASSIGN_OR_RETURN(const int64_t own_bytes, plan.number(CudnnAttribute::plan_workspace_bytes));
  CudnnPlan result{.engine = proposed[choice.place].engine};
  KILN_ASSIGN_OR_RETURN(result.text, plan.text(CudnnAttribute::plan_text));
  const uint64_t tensors_begin = (static_cast<uint64_t>(own_bytes) + 255) / 256 * 256;
  result.record = {.version = cudnn->version(),
                   .workspace_bytes = tensors_begin + writer.workspace_bytes(),
                   .tensors = writer.tensors()};
  for (PlanTensor& tensor : result.record.tensors) {
    if (tensor.place == PlanTensor::Place::workspace) tensor.offset_bytes += tensors_begin;
  }
  if (result.record.workspace_bytes > limits::k_launch_workspace_bytes) {
    return error(StatusCode::resource_exhausted, "cudnn: a workspace of {} bytes, the limit is {}",
                 result.record.workspace_bytes, limits::k_launch_workspace_bytes);
  }
  return result;
}

}  // namespace kiln::cuda
