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
  bool c_transposed = false;
  bool b_is_shared = false;         // by all of the batch
  int64_t padding = 0;              // elements between rows, or columns where those lie in one piece
  bool with_columns_bias = false;   // an element for each column, of the result's dtype
  bool with_gelu = false;           // in its tanh form
  double factor = 1;                // of the product
  bool with_residual = false;       // a matrix like the result, which is added
  bool with_gelu_input = false;     // stored beside its GELU, and rounded for both
  bool with_gelu_gradient = false;  // times GELU's derivative at a matrix like the result
};

/// tanh(x + bias[n]), or, as linear layers and their gradients have it, x, gelu(x) or x * gelu'(y), x with terms of the result's
/// dtype or without.
class GemmEpilogue {
 public:
  GemmEpilogue(KernelSpec& spec, Body& body, DType wide) : m_spec(spec), m_body(body), m_wide(wide) {}

  ExprId accumulator() { return add({ScalarOp::accumulator, m_wide}); }
  ExprId plus_bias(ExprId value, DType dtype, int64_t n, std::vector<int64_t> strides) {
    return binary(ScalarOp::add, value, loaded(dtype, n, std::move(strides)));
  }
  ExprId plus(ExprId value, ExprId other) { return binary(ScalarOp::add, value, other); }
  ExprId times(ExprId value, double factor) {
    return factor == 1 ? value : binary(ScalarOp::mul, value, number(factor));
  }
  ExprId gelu(ExprId x) {
    return binary(ScalarOp::mul, binary(ScalarOp::mul, x, number(0.5)), binary(ScalarOp::add, bend(x), number(1)));
  }
  ExprId times_gelu_slope(ExprId value, ExprId x) {
    const ExprId t = bend(x), flat = binary(ScalarOp::sub, number(1), binary(ScalarOp::mul, t, t));
    const ExprId inner = plus(number(1), binary(ScalarOp::mul, binary(ScalarOp::mul, x, x), number(3 * 0.044715)));
    const ExprId steep = binary(ScalarOp::mul, binary(ScalarOp::mul, x, flat), times(inner, 0.7978845608028654));
    return binary(ScalarOp::mul, value, times(plus(plus(t, number(1)), steep), 0.5));
  }
  /// An element of an input that has none yet.
  ExprId loaded(DType dtype, int64_t elements, std::vector<int64_t> strides) {
    const uint32_t slot = at_new_buffer({dtype, elements, BufferRole::input}, std::move(strides));
    return cast(add(load(dtype, slot)), m_wide);
  }
  uint32_t at_new_buffer(const BufferSpec& buffer, std::vector<int64_t> strides) {
    m_body.accesses.push_back(access(static_cast<uint32_t>(m_spec.buffers.size()), std::move(strides)));
    m_spec.buffers.push_back(buffer);
    return static_cast<uint32_t>(m_body.accesses.size() - 1);
  }
  ExprId tanh(ExprId x) { return add({ScalarOp::tanh, m_wide, {x, k_no_expr, k_no_expr}}); }
  ExprId cast(ExprId x, DType dtype) {
    return m_body.exprs[x].dtype == dtype ? x : add({ScalarOp::cast, dtype, {x, k_no_expr, k_no_expr}});
  }

 private:
  ExprId bend(ExprId x) {
    const ExprId cube = binary(ScalarOp::mul, binary(ScalarOp::mul, x, x), x);
    const ExprId inner = binary(ScalarOp::add, x, binary(ScalarOp::mul, cube, number(0.044715)));
    return tanh(binary(ScalarOp::mul, inner, number(0.7978845608028654)));
  }
  ExprId add(ScalarNode node) {
    m_body.exprs.push_back(node);
    return static_cast<ExprId>(m_body.exprs.size() - 1);
  }
  ExprId binary(ScalarOp op, ExprId x, ExprId y) { return add({op, m_wide, {x, y, k_no_expr}}); }
  ExprId number(double value) { return add({.op = ScalarOp::constant, .dtype = m_wide, .immediate = value}); }

  KernelSpec& m_spec;
  Body& m_body;
  DType m_wide;
};

/// C[b, m, n] = A @ B, and what follows it.
inline KernelSpec gemm(const GemmCase& c) {
  KernelSpec spec;
  GemmSpec kernel;
  kernel.m = c.m;
  kernel.n = c.n;
  kernel.k = c.k;
  kernel.dtype = c.dtype;
  const DType stored = c.stored.value_or(c.dtype);
  if (c.batch > 1) kernel.batch = {c.batch};
  const auto elements = [&](int64_t rows, int64_t columns, bool transposed) {
    return transposed ? columns * (rows + c.padding) : rows * (columns + c.padding);
  };
  const auto strides = [&](int64_t batch_stride, int64_t row, int64_t column) {
    return c.batch > 1 ? std::vector<int64_t>{batch_stride, row, column} : std::vector<int64_t>{row, column};
  };
  const auto matrix = [&](uint32_t buffer, int64_t rows, int64_t columns, bool transposed, bool is_shared = false) {
    const int64_t batch_stride = is_shared ? 0 : elements(rows, columns, transposed);
    return access(buffer, transposed ? strides(batch_stride, 1, rows + c.padding)
                                     : strides(batch_stride, columns + c.padding, 1));
  };
  spec.buffers = {{c.dtype, c.batch * elements(c.m, c.k, c.a_transposed), BufferRole::input},
                  {c.dtype, (c.b_is_shared ? 1 : c.batch) * elements(c.k, c.n, c.b_transposed), BufferRole::input},
                  {stored, c.batch * elements(c.m, c.n, c.c_transposed), BufferRole::output}};
  kernel.a.accesses = {matrix(0, c.m, c.k, c.a_transposed)};
  kernel.a.exprs = {load(c.dtype, 0)};
  kernel.a_value = 0;
  kernel.b.accesses = {matrix(1, c.k, c.n, c.b_transposed, c.b_is_shared)};
  kernel.b.exprs = {load(c.dtype, 0)};
  kernel.b_value = 0;

  const DType wide = accumulator_of(c.dtype);
  kernel.epilogue.accesses = {matrix(2, c.m, c.n, c.c_transposed)};
  GemmEpilogue epilogue(spec, kernel.epilogue, wide);
  const std::vector<int64_t> places = kernel.epilogue.accesses[0].strides;
  const int64_t results = spec.buffers[2].elements;
  ExprId value = epilogue.times(epilogue.accumulator(), c.factor);
  if (c.with_bias) value = epilogue.tanh(epilogue.plus_bias(value, wide, c.n, strides(0, 0, 1)));
  if (c.with_columns_bias) value = epilogue.plus_bias(value, stored, c.n, strides(0, 0, 1));
  if (c.with_residual) value = epilogue.plus(value, epilogue.loaded(stored, results, places));
  if (c.with_gelu_input) {
    const ExprId kept = epilogue.cast(value, stored);
    value = epilogue.cast(kept, wide);
    kernel.stores = {{kept, epilogue.at_new_buffer({stored, results, BufferRole::output}, places), StoreMode::assign}};
  }
  if (c.with_gelu || c.with_gelu_input) value = epilogue.gelu(value);
  if (c.with_gelu_gradient) value = epilogue.times_gelu_slope(value, epilogue.loaded(stored, results, places));
  kernel.stores.push_back({epilogue.cast(value, stored), 0, StoreMode::assign});
  spec.kernel = kernel;
  return spec;
}

}  // namespace kiln::conformance
