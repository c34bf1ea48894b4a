#pragma once

#include "frontend/fuse/kernel_spec.h"

namespace kiln::bench {

/// f32 gemm over dense matrices. Buffers: a, b, [bias of n,] c.
KernelSpec gemm_spec(int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed, bool bias);

}  // namespace kiln::bench
