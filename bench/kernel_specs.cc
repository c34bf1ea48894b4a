#include "bench/kernel_specs.h"

namespace kiln::bench {
namespace {

/// A body of one load.
Body load_body(uint32_t buffer, std::vector<int64_t> strides) {
  Body body;
  body.accesses.push_back({buffer, 0, std::move(strides), {}});
  body.exprs.push_back({.op = ScalarOp::load, .dtype = DType::f32});
  return body;
}

}  // namespace

KernelSpec gemm_spec(int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed, bool bias) {
  GemmSpec gemm;
  gemm.m = m;
  gemm.n = n;
  gemm.k = k;
  gemm.a = load_body(0, a_transposed ? std::vector<int64_t>{1, m} : std::vector<int64_t>{k, 1});
  gemm.b = load_body(1, b_transposed ? std::vector<int64_t>{1, k} : std::vector<int64_t>{n, 1});
  gemm.a_value = gemm.b_value = 0;
  KernelSpec spec;
  spec.buffers = {{DType::f32, m * k, BufferRole::input}, {DType::f32, k * n, BufferRole::input}};
  gemm.epilogue.exprs.push_back({.op = ScalarOp::accumulator, .dtype = DType::f32});
  ExprId value = 0;
  if (bias) {
    gemm.epilogue.accesses.push_back({2, 0, {0, 1}, {}});
    spec.buffers.push_back({DType::f32, n, BufferRole::input});
    gemm.epilogue.exprs.push_back({.op = ScalarOp::load, .dtype = DType::f32});
    gemm.epilogue.exprs.push_back({.op = ScalarOp::add, .dtype = DType::f32, .operands = {0, 1, k_no_expr}});
    value = 2;
  }
  const auto output = static_cast<uint32_t>(spec.buffers.size());
  spec.buffers.push_back({DType::f32, m * n, BufferRole::output});
  gemm.stores.push_back({value, static_cast<uint32_t>(gemm.epilogue.accesses.size()), StoreMode::assign});
  gemm.epilogue.accesses.push_back({output, 0, {n, 1}, {}});
  spec.kernel = gemm;
  return spec;
}

}  // namespace kiln::bench
