#pragma once

#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln::bench {

/// What follows the product of a linear layer.
struct LinearEpilogue {
  bool bias = false;      // of n, in the layer's dtype
  bool gelu = false;      // tanh form
  bool residual = false;  // [m, n], added last
};

/// y = epilogue(x @ w): x [m, k], w [k, n], or [n, k] where it is transposed. Computed in f32, stored as `dtype`.
/// Buffers: x, w, [bias,] [residual,] y.
inline KernelSpec linear_spec(DType dtype, int64_t m, int64_t n, int64_t k, bool x_transposed, bool w_transposed,
                              const LinearEpilogue& what) {
  KernelSpec spec;
  GemmSpec gemm;
  gemm.m = m, gemm.n = n, gemm.k = k, gemm.dtype = dtype;
  const auto load = [&](uint32_t slot) { return ScalarNode{.op = ScalarOp::load, .dtype = dtype, .slot = slot}; };
  spec.buffers = {{dtype, m * k, BufferRole::input}, {dtype, k * n, BufferRole::input}};
  gemm.a.accesses = {{0, 0, x_transposed ? std::vector<int64_t>{1, m} : std::vector<int64_t>{k, 1}, {}}};
  gemm.b.accesses = {{1, 0, w_transposed ? std::vector<int64_t>{1, k} : std::vector<int64_t>{n, 1}, {}}};
  gemm.a.exprs = gemm.b.exprs = {load(0)};
  gemm.a_value = gemm.b_value = 0;

  Body& body = gemm.epilogue;
  const DType wide = accumulator_of(dtype);
  const auto node = [&](ScalarNode added) {
    body.exprs.push_back(added);
    return static_cast<ExprId>(body.exprs.size() - 1);
  };
  const auto binary = [&](ScalarOp op, ExprId a, ExprId b) { return node({op, wide, {a, b, k_no_expr}}); };
  const auto number = [&](double value) { return node({.op = ScalarOp::constant, .dtype = wide, .immediate = value}); };
  const auto input = [&](int64_t elements, std::vector<int64_t> strides) {
    body.accesses.push_back({static_cast<uint32_t>(spec.buffers.size()), 0, std::move(strides), {}});
    spec.buffers.push_back({dtype, elements, BufferRole::input});
    const ExprId loaded = node(load(static_cast<uint32_t>(body.accesses.size() - 1)));
    return wide == dtype ? loaded : node({ScalarOp::cast, wide, {loaded, k_no_expr, k_no_expr}});
  };
  ExprId value = node({.op = ScalarOp::accumulator, .dtype = wide});
  if (what.bias) value = binary(ScalarOp::add, value, input(n, {0, 1}));
  if (what.gelu) {
    const ExprId cube =
        binary(ScalarOp::mul, binary(ScalarOp::mul, value, value), binary(ScalarOp::mul, value, number(0.044715)));
    const ExprId inner = binary(ScalarOp::mul, binary(ScalarOp::add, value, cube), number(0.7978845608028654));
    const ExprId gate = binary(ScalarOp::add, node({ScalarOp::tanh, wide, {inner, k_no_expr, k_no_expr}}), number(1));
    value = binary(ScalarOp::mul, binary(ScalarOp::mul, value, number(0.5)), gate);
  }
  if (what.residual) value = binary(ScalarOp::add, value, input(m * n, {n, 1}));
  if (wide != dtype) value = node({ScalarOp::cast, dtype, {value, k_no_expr, k_no_expr}});
  gemm.stores = {{value, static_cast<uint32_t>(body.accesses.size()), StoreMode::assign}};
  body.accesses.push_back({static_cast<uint32_t>(spec.buffers.size()), 0, {n, 1}, {}});
  spec.buffers.push_back({dtype, m * n, BufferRole::output});
  spec.kernel = gemm;
  return spec;
}

}  // namespace kiln::bench
