#pragma once

#include <span>

#include "frontend/fuse/kernels.h"

namespace kiln {

/// Whether one of `kernels` computes values again so often, and more often than those `before` it did, that to store them and
/// read them costs less: each element of a window's operand, say, for each place of the window.
bool repeats_more(std::span<const LoweredKernel> kernels, std::span<const LoweredKernel> before);

}  // namespace kiln
