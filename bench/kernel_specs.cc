#include "bench/kernel_specs.h"

#include <cmath>

namespace kiln::bench {
namespace {

/// A body of one load.
Body load_body(uint32_t buffer, DType dtype, std::vector<int64_t> strides) {
  Body body;
  body.accesses.push_back({buffer, 0, std::move(strides), {}});
  body.exprs.push_back({.op = ScalarOp::load, .dtype = dtype});
  return body;
}

}  // namespace

KernelSpec gemm_spec(DType dtype, int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed, bool bias) {
  GemmSpec gemm;
  gemm.dtype = dtype;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.a = load_body(0, dtype, a_transposed ? std::vector<int64_t>{1, m} : std::vector<int64_t>{k, 1});
  gemm.b = load_body(1, dtype, b_transposed ? std::vector<int64_t>{1, k} : std::vector<int64_t>{n, 1});
  gemm.a_value = gemm.b_value = 0;
  KernelSpec spec;
  spec.buffers = {{dtype, m * k, BufferRole::input}, {dtype, k * n, BufferRole::input}};
  gemm.epilogue.exprs.push_back({.op = ScalarOp::accumulator, .dtype = DType::f32});
  ExprId value = 0;
  if (bias) {
    gemm.epilogue.accesses.push_back({2, 0, {0, 1}, {}});
    spec.buffers.push_back({DType::f32, n, BufferRole::input});
    gemm.epilogue.exprs.push_back({.op = ScalarOp::load, .dtype = DType::f32});
    gemm.epilogue.exprs.push_back({.op = ScalarOp::add, .dtype = DType::f32, .operands = {0, 1, k_no_expr}});
    value = 2;
  }
  if (dtype != DType::f32) {
    gemm.epilogue.exprs.push_back({.op = ScalarOp::cast, .dtype = dtype, .operands = {value, k_no_expr, k_no_expr}});
    ++value;
  }
  const auto output = static_cast<uint32_t>(spec.buffers.size());
  spec.buffers.push_back({dtype, m * n, BufferRole::output});
  gemm.stores.push_back({value, static_cast<uint32_t>(gemm.epilogue.accesses.size()), StoreMode::assign});
  gemm.epilogue.accesses.push_back({output, 0, {n, 1}, {}});
  spec.kernel = gemm;
  return spec;
}

namespace {

/// Appends a dense tensor to the buffers and names it.
Access add_tensor(KernelSpec& spec, const AttentionSpec& attention, BufferRole role) {
  const int64_t length = attention.q_len, dim = attention.head_dim;
  const auto buffer = static_cast<uint32_t>(spec.buffers.size());
  spec.buffers.push_back({DType::f32, attention.batch * attention.heads * length * dim, role});
  return {buffer, 0, {attention.heads * length * dim, length * dim, dim, 1}, {}};
}

AttentionSpec make_attention(KernelSpec& spec, int64_t batch, int64_t heads, int64_t length, int64_t dim, bool causal,
                             BufferRole results) {
  AttentionSpec attention;
  attention.batch = batch;
  attention.heads = attention.kv_heads = heads;
  attention.q_len = attention.k_len = length;
  attention.head_dim = attention.value_dim = dim;
  attention.scale = 1 / std::sqrt(static_cast<double>(dim));
  attention.causal = causal;
  attention.q = add_tensor(spec, attention, BufferRole::input);
  attention.k = add_tensor(spec, attention, BufferRole::input);
  attention.v = add_tensor(spec, attention, BufferRole::input);
  attention.out = add_tensor(spec, attention, results);
  attention.lse = {static_cast<uint32_t>(spec.buffers.size()), 0, {heads * length, length, 1}, {}};
  spec.buffers.push_back({DType::f32, batch * heads * length, results});
  return attention;
}

}  // namespace

KernelSpec attention_spec(int64_t batch, int64_t heads, int64_t length, int64_t dim, bool causal) {
  KernelSpec spec;
  spec.kernel = make_attention(spec, batch, heads, length, dim, causal, BufferRole::output);
  return spec;
}

KernelSpec attention_backward_spec(int64_t batch, int64_t heads, int64_t length, int64_t dim, bool causal) {
  KernelSpec spec;
  AttentionBackwardSpec backward;
  backward.forward = make_attention(spec, batch, heads, length, dim, causal, BufferRole::input);
  backward.grad_out = add_tensor(spec, backward.forward, BufferRole::input);
  backward.grad_q = add_tensor(spec, backward.forward, BufferRole::output);
  backward.grad_k = add_tensor(spec, backward.forward, BufferRole::output);
  backward.grad_v = add_tensor(spec, backward.forward, BufferRole::output);
  spec.kernel = backward;
  return spec;
}

}  // namespace kiln::bench
