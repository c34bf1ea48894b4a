#pragma once

#include "backends/cuda/compile/kernel_source.h"

namespace kiln::cuda {

Status gemm_claims(const KernelSpec& spec, const CudaTarget& target);
std::vector<Schedule> gemm_candidates(const KernelSpec& spec, const CudaTarget& target, const Machine& machine);
/// Errors: invalid_argument for bytes that are no schedule that fits the spec. Of a library's choice (cublaslt_gemm.h): the
/// kernels for addresses that it does not take.
Expected<LaunchSource> gemm_source(const KernelSpec& spec, const Schedule& schedule, const CudaTarget& target);

}  // namespace kiln::cuda
