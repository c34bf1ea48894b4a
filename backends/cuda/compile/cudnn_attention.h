#pragma once

#include <vector>

#include "backends/cuda/compile/attention_schedule.h"
#include "backends/cuda/compile/cudnn_planner.h"

/// Attention by cuDNN, beside the kernels of attention_schedule.h: the same specs, as far as its graphs say exactly them.
namespace kiln::cuda {

/// cuDNN, where this host has it and its graphs express the problem on the target: halves, depths that 8 divides, rows in
/// whole pieces of 16 bytes, no score expression, no mask or that of keys which come later than their query. Else null.
const Cudnn* cudnn_for(const AttentionProblem& problem, const CudaTarget& target);

/// What it proposes for such a problem, best first; named before any is made.
std::vector<Schedule> cudnn_attention_schedules();

/// Made for the target's usual device, described and not asked; no device need be there. The engines proposed give equal bits
/// for equal inputs.
/// Errors: unimplemented where nothing is proposed at that place, resource_exhausted for too much workspace,
/// failed_precondition where there is no cuDNN, or none that plans without a device.
Expected<CudnnPlan> cudnn_plan(const AttentionProblem& problem, const CudnnChoice& choice, const CudaTarget& target);

}  // namespace kiln::cuda
