#pragma once

#include <span>

#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// One interpreter per kind of kernel. The spec is valid. False when an indirect index was out of range.
bool run_kernel(const KernelSpec& spec, const LoopsSpec& loops, std::span<void* const> buffers);
bool run_kernel(const KernelSpec& spec, const GemmSpec& gemm, std::span<void* const> buffers);
bool run_kernel(const KernelSpec& spec, const AttentionSpec& attention, std::span<void* const> buffers);
bool run_kernel(const KernelSpec& spec, const AttentionBackwardSpec& backward, std::span<void* const> buffers);
bool run_kernel(const KernelSpec& spec, const SortSpec& sort, std::span<void* const> buffers);

}  // namespace kiln
