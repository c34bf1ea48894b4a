#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln::conformance {

inline Access access(uint32_t buffer, std::vector<int64_t> strides) { return {buffer, 0, std::move(strides), {}}; }

inline ScalarNode load(DType dtype, uint32_t slot) {
  return {ScalarOp::load, dtype, {k_no_expr, k_no_expr, k_no_expr}, slot};
}

struct GemmCase {
  int64_t batch = 1, m = 1, n = 1, k = 1;
  DType dtype = DType::f32;
  bool a_transposed = false, b_transposed = false;
  bool with_bias = false;                      // and an activation, in the epilogue
  std::optional<DType> stored = std::nullopt;  // another dtype than the operands'
};

/// C[b, m, n] = tanh(A @ B + bias[n]) or A @ B.
inline KernelSpec gemm(const GemmCase& c) {
  KernelSpec spec;
  GemmSpec kernel;
  kernel.m = c.m;
  kernel.n = c.n;
  kernel.k = c.k;
  kernel.dtype = c.dtype;
  const DType stored = c.stored.value_or(c.dtype);
  const bool batched = c.batch > 1;
  if (batched) kernel.batch = {c.batch};
  const auto strides = [&](int64_t batch_stride, int64_t row, int64_t column) {
    return batched ? std::vector<int64_t>{batch_stride, row, column} : std::vector<int64_t>{row, column};
  };
  spec.buffers = {{c.dtype, c.batch * c.m * c.k, BufferRole::input},
                  {c.dtype, c.batch * c.k * c.n, BufferRole::input},
                  {stored, c.batch * c.m * c.n, BufferRole::output}};
  kernel.a.accesses = {access(0, c.a_transposed ? strides(c.m * c.k, 1, c.m) : strides(c.m * c.k, c.k, 1))};
  kernel.a.exprs = {load(c.dtype, 0)};
  kernel.a_value = 0;
  kernel.b.accesses = {access(1, c.b_transposed ? strides(c.k * c.n, 1, c.k) : strides(c.k * c.n, c.n, 1))};
  kernel.b.exprs = {load(c.dtype, 0)};
  kernel.b_value = 0;

  const DType wide = accumulator_of(c.dtype);
  auto& exprs = kernel.epilogue.exprs;
  exprs.push_back({ScalarOp::accumulator, wide});
  kernel.epilogue.accesses = {access(2, strides(c.m * c.n, c.n, 1))};
  if (c.with_bias) {
    spec.buffers.push_back({wide, c.n, BufferRole::input});
    kernel.epilogue.accesses.push_back(access(3, strides(0, 0, 1)));
    exprs.push_back(load(wide, 1));
    exprs.push_back({ScalarOp::add, wide, {0, 1, k_no_expr}});
    exprs.push_back({ScalarOp::tanh, wide, {2, k_no_expr, k_no_expr}});
  }
  auto result = static_cast<ExprId>(exprs.size() - 1);
  if (wide != stored) {
    exprs.push_back({ScalarOp::cast, stored, {result, k_no_expr, k_no_expr}});
    ++result;
  }
  kernel.stores = {{result, 0, StoreMode::assign}};
  spec.kernel = kernel;
  return spec;
}

}  // namespace kiln::conformance
