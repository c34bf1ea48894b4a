#pragma once

#include <vector>

#include "backends/cuda/compile/cudnn_planner.h"
#include "frontend/kernel/kernel_spec.h"

/// Convolutions and gradients of filters by cuDNN, beside the kernels of gemm_schedule.h: the products of windows that are one
/// (convolution.h), as far as its graphs say exactly them.
namespace kiln::cuda {

/// cuDNN, where this host has it and its graphs express the spec on the target: f16, bf16 or f32, results of the operands'
/// dtype, filters that fill a piece of memory, tensors that begin at multiples of 16 bytes in their buffers; after the product
/// nothing or, of a convolution, a bias for each filter. Else null.
const Cudnn* cudnn_for(const KernelSpec& spec, const CudaTarget& target);

/// What it proposes for such a spec, best first; named before any is made.
std::vector<Schedule> cudnn_convolution_schedules();

/// As attention's. f32 is multiplied and summed in f32, halves are summed in f32, by engines that give equal bits for equal
/// inputs.
/// Errors: as attention's.
Expected<CudnnPlan> cudnn_plan(const KernelSpec& spec, const CudnnChoice& choice, const CudaTarget& target);

}  // namespace kiln::cuda
