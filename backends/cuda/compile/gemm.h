#pragma once

#include "backends/cuda/compile/kernel_source.h"

namespace kiln::cuda {

Status gemm_claims(const KernelSpec& spec, const CudaTarget& target);
std::vector<Schedule> gemm_candidates(const KernelSpec& spec, const CudaTarget& target);
/// Errors: invalid_argument for a schedule of another spec.
Expected<std::vector<KernelSource>> gemm_source(const KernelSpec& spec, const Schedule& schedule,
                                                const CudaTarget& target);

}  // namespace kiln::cuda
