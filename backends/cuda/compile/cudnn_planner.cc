#include "backends/cuda/compile/cudnn_planner.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/compile/null_driver.h"
#include "backends/cuda/compile/nvrtc.h"
#include "backends/cuda/compile/texts.h"
#include "backends/cuda/cudnn/plan.h"
#include "base/ceil_div.h"
#include "base/limits.h"
#include "frontend/kernel/affine.h"

namespace kiln::cuda {
namespace {

// More than it has proposed for anything. Those that f32 may have come last.
constexpr size_t k_most_proposals = 64;
constexpr size_t k_most_notes = 16;
constexpr uint64_t k_workspace_alignment = 256;
constexpr int k_heuristic_a = 3;  // CUDNN_HEUR_MODE_A

/// The usual device of a target; empty where none is described.
std::string_view device_text(const CudaTarget& target) { return target.name == "sm_90a" ? cudnn_sm_90a_text : ""; }

/// An engine with its choices, as cuDNN proposes it.
struct Proposal {
  CudnnObject choice;
  int64_t engine = 0;
};

/// Best first.
Expected<std::vector<Proposal>> proposals(const Cudnn& cudnn, const CudnnObject& graph, const CudnnObject& device,
                                          std::span<const CudnnNote> without) {
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
    const auto is_refused = [&](int note) { return std::ranges::find(without, CudnnNote{note}) != without.end(); };
    if (std::ranges::none_of(notes, is_refused)) result.push_back({std::move(choice), index});
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

const Cudnn* cudnn_on(const CudaTarget& target) {
  if (device_text(target).empty()) return nullptr;
  const Expected<Cudnn>& cudnn = Cudnn::of_process();
  return cudnn.ok() ? &*cudnn : nullptr;
}

CudnnTensor CudnnPlanner::memory(uint32_t buffer, int64_t offset, DType dtype, std::vector<int64_t> extents,
                                 std::vector<int64_t> strides) {
  const int64_t name = add({.place = PlanTensor::Place::buffer,
                            .buffer = buffer,
                            .offset_bytes = static_cast<uint64_t>(offset) * size_of(dtype)});
  return m_graph.memory(name, dtype, std::move(extents), std::move(strides));
}

CudnnTensor CudnnPlanner::workspace(const std::vector<int64_t>& extents) {
  const int64_t name = add({.place = PlanTensor::Place::workspace, .offset_bytes = m_workspace_bytes});
  m_workspace_bytes += round_up(static_cast<uint64_t>(product(extents)) * sizeof(float), k_workspace_alignment);
  return m_graph.memory(name, DType::f32, extents, {extents[1] * extents[2], extents[2], 1, 1});
}

CudnnTensor CudnnPlanner::number(float value) {
  return m_graph.constant(add({.place = PlanTensor::Place::number, .value = value}));
}

int64_t CudnnPlanner::add(PlanTensor tensor) {
  tensor.number = static_cast<int64_t>(m_tensors.size()) + 1;
  m_tensors.push_back(tensor);
  return tensor.number;
}

PlanRecord CudnnPlanner::record(uint64_t own_bytes) const {
  const uint64_t tensors_begin = round_up(own_bytes, k_workspace_alignment);
  PlanRecord record{
      .version = m_cudnn.version(), .workspace_bytes = tensors_begin + m_workspace_bytes, .tensors = m_tensors};
  for (PlanTensor& tensor : record.tensors) {
    if (tensor.place == PlanTensor::Place::workspace) tensor.offset_bytes += tensors_begin;
  }
  return record;
}

Expected<CudnnPlan> CudnnPlanner::plan(const CudnnChoice& choice, std::span<const CudnnNote> without) {
  // It looks for the compiler by its bare name.
  KILN_RETURN_IF_ERROR(Nvrtc::of_process().status());
  KILN_RETURN_IF_ERROR(ensure_driver());
  KILN_ASSIGN_OR_RETURN(const CudnnObject device, described_device(m_cudnn, device_text(m_target)));
  KILN_ASSIGN_OR_RETURN(const CudnnObject graph, m_graph.finalise());
  KILN_ASSIGN_OR_RETURN(const std::vector<Proposal> proposed, proposals(m_cudnn, graph, device, without));
  if (choice.place >= proposed.size()) {
    return error(StatusCode::unimplemented, "cudnn: {} plans are proposed, none at place {}", proposed.size(),
                 choice.place + 1);
  }
  KILN_ASSIGN_OR_RETURN(const CudnnObject plan, finished_plan(m_cudnn, proposed[choice.place].choice, device));
  KILN_ASSIGN_OR_RETURN(const int64_t own_bytes, plan.number(CudnnAttribute::plan_workspace_bytes));
  CudnnPlan result{.record = record(static_cast<uint64_t>(own_bytes)), .engine = proposed[choice.place].engine};
  KILN_ASSIGN_OR_RETURN(result.text, plan.text(CudnnAttribute::plan_text));
  if (result.record.workspace_bytes > limits::k_launch_workspace_bytes) {
    return error(StatusCode::resource_exhausted, "cudnn: a workspace of {} bytes, the limit is {}",
                 result.record.workspace_bytes, limits::k_launch_workspace_bytes);
  }
  return result;
}

}  // namespace kiln::cuda
