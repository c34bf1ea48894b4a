#pragma once

#include <span>
#include <string>
#include <vector>

#include "backends/cuda/compile/cudnn_graph.h"
#include "backends/cuda/compile/library_choice.h"
#include "backends/cuda/launch_record.h"
#include "backends/cuda/targets.h"
#include "frontend/kernel/scalar.h"

namespace kiln::cuda {

/// One of the plans that cuDNN proposes, by its place in their order.
struct CudnnChoice : LibraryChoice {
  static constexpr std::string_view k_implementation = "cudnn";
};

/// A plan, and what stands in the image for it.
struct CudnnPlan {
  PlanRecord record;  // without the place of its text
  std::string text;
  int64_t engine = 0;
};

/// cudnnBackendNumericalNote_t: what an engine says of its arithmetic.
enum class CudnnNote : int {
  tensor_cores = 0,
  rounds_operands = 1,
  sums_in_halves = 2,
  fourier = 3,
  nondeterministic = 4,
  winograd = 5,
};

/// cuDNN, where this host has it and the target's usual device is described. Else null.
const Cudnn* cudnn_on(const CudaTarget& target);

/// A graph in the making, what its tensors are at a launch, and the plan that cuDNN makes of it for the target's usual device,
/// described and not asked; no device need be there.
class CudnnPlanner {
 public:
  CudnnPlanner(const Cudnn& cudnn, const CudaTarget& target) : m_cudnn(cudnn), m_target(target), m_graph(cudnn) {}

  CudnnGraph& graph() { return m_graph; }
  /// `offset`: elements from the start of a buffer.
  CudnnTensor memory(uint32_t buffer, int64_t offset, DType dtype, std::vector<int64_t> extents,
                     std::vector<int64_t> strides);
  /// Rows of f32 between ops, [batch, heads, rows, 1].
  CudnnTensor workspace(const std::vector<int64_t>& extents);
  CudnnTensor number(float value);

  /// One of what is proposed, without engines of which one of the notes is true. Called once, when the graph is whole.
  /// Errors: unimplemented where nothing is proposed at that place, resource_exhausted for too much workspace,
  /// failed_precondition where cuDNN does not plan without a device.
  Expected<CudnnPlan> plan(const CudnnChoice& choice, std::span<const CudnnNote> without);

 private:
  int64_t add(PlanTensor tensor);
  PlanRecord record(uint64_t own_bytes) const;

  const Cudnn& m_cudnn;
  const CudaTarget& m_target;
  CudnnGraph m_graph;
  std::vector<PlanTensor> m_tensors;
  uint64_t m_workspace_bytes = 0;  // of tensors; what the plan itself needs comes before
};

}  // namespace kiln::cuda
