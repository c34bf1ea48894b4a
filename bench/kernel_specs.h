#pragma once

#include "frontend/kernel/kernel_spec.h"

namespace kiln::bench {

/// A gemm of the dtype over dense matrices. Buffers: a, b, [bias of n, f32,] c.
KernelSpec gemm_spec(DType dtype, int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed, bool bias);

/// f32 attention over dense [batch, heads, length, dim]. Buffers: q, k, v, out, lse.
KernelSpec attention_spec(int64_t batch, int64_t heads, int64_t length, int64_t dim, bool causal);

/// Its gradient. Buffers: q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v.
KernelSpec attention_backward_spec(int64_t batch, int64_t heads, int64_t length, int64_t dim, bool causal);

}  // namespace kiln::bench
