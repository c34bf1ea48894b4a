#pragma once

#include "backends/cuda/compile/kernel_source.h"

namespace kiln::cuda {

Status loops_claims(const KernelSpec& spec, const CudaTarget& target);
std::vector<Schedule> loops_candidates(const KernelSpec& spec, const CudaTarget& target, const Machine& machine);
/// Errors: invalid_argument for bytes that are no schedule that fits the spec.
Expected<LaunchSource> loops_source(const KernelSpec& spec, const Schedule& schedule, const CudaTarget& target);

}  // namespace kiln::cuda
