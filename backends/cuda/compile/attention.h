#pragma once

#include "backends/cuda/compile/kernel_source.h"

/// Kernels of AttentionSpec and of AttentionBackwardSpec.
namespace kiln::cuda {

Status attention_claims(const KernelSpec& spec, const CudaTarget& target);
std::vector<Schedule> attention_candidates(const KernelSpec& spec, const CudaTarget& target, const Machine& machine);
/// Errors: invalid_argument for bytes that are no schedule that fits the spec. Of a plan's
/// (cudnn_attention.h): the kernels for addresses that it does not take.
Expected<LaunchSource> attention_source(const KernelSpec& spec, const Schedule& schedule, const CudaTarget& target);

}  // namespace kiln::cuda
