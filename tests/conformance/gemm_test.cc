#include <gtest/gtest.h>

#include <cmath>

#include "tests/conformance/check_kernel.h"

namespace kiln::conformance {
namespace {

Access access(uint32_t buffer, std::vector<int64_t> strides) { return {buffer, 0, std::move(strides), {}}; }

ScalarNode load(DType dtype, uint32_t slot) { return {ScalarOp::load, dtype, {k_no_expr, k_no_expr, k_no_expr}, slot}; }

struct GemmCase {
  int64_t batch = 1, m = 1, n = 1, k = 1;
  DType dtype = DType::f32;
  bool a_transposed = false, b_transposed = false;
  bool with_bias = false;  // and an activation, in the epilogue
};

/// C[b, m, n] = tanh(A @ B + bias[n]) or A @ B.
KernelSpec gemm(const GemmCase& c) {
  KernelSpec spec;
  GemmSpec kernel;
  kernel.m = c.m;
  kernel.n = c.n;
  kernel.k = c.k;
  kernel.dtype = c.dtype;
  const bool batched = c.batch > 1;
  if (batched) kernel.batch = {c.batch};
  const auto strides = [&](int64_t batch_stride, int64_t row, int64_t column) {
    return batched ? std::vector<int64_t>{batch_stride, row, column} : std::vector<int64_t>{row, column};
  };
  spec.buffers = {{c.dtype, c.batch * c.m * c.k, BufferRole::input},
                  {c.dtype, c.batch * c.k * c.n, BufferRole::input},
                  {c.dtype, c.batch * c.m * c.n, BufferRole::output}};
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
  if (wide != c.dtype) {
    exprs.push_back({ScalarOp::cast, c.dtype, {result, k_no_expr, k_no_expr}});
    ++result;
  }
  kernel.stores = {{result, 0, StoreMode::assign}};
  spec.kernel = kernel;
  return spec;
}

class Gemm : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void check(const GemmCase& c) {
    const KernelSpec spec = gemm(c);
    ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
    if (const Status claimed = GetParam().compile->claims(spec, GetParam().target); !claimed.ok()) {
      m_skipped = claimed.to_string();
      return;
    }
    // Errors of a sum of k products grow with its root.
    const double factor = 4 + std::sqrt(static_cast<double>(c.k));
    if (!check_kernel(GetParam(), spec, m_random, {.tolerance_factor = factor})) {
      m_skipped = "compiled, not run: this host lacks " + GetParam().target.name;
    }
  }
  void TearDown() override {
    if (!m_skipped.empty() && !HasFailure()) GTEST_SKIP() << m_skipped;
  }
  std::mt19937_64 m_random{30};
  std::string m_skipped;
};

TEST_P(Gemm, shapes_around_the_tiles) {
  const int64_t shapes[][3] = {{1, 1, 1}, {1, 65, 33}, {17, 1, 9}, {64, 64, 64}, {65, 63, 129}, {33, 100, 1}};
  for (const auto& [m, n, k] : shapes) {
    check({.m = m, .n = n, .k = k});
    if (HasFailure()) return;
  }
}

TEST_P(Gemm, operands_may_be_transposed) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      check({.m = 37, .n = 50, .k = 71, .a_transposed = a, .b_transposed = b});
      if (HasFailure()) return;
    }
  }
}

TEST_P(Gemm, an_epilogue_sees_the_finished_sum) { check({.m = 29, .n = 83, .k = 300, .with_bias = true}); }

TEST_P(Gemm, batches_are_independent) { check({.batch = 3, .m = 18, .n = 35, .k = 20, .with_bias = true}); }

class GemmDtype : public Gemm {};

TEST_P(GemmDtype, f64) { check({.m = 21, .n = 40, .k = 55, .dtype = DType::f64, .with_bias = true}); }
TEST_P(GemmDtype, bf16) { check({.m = 21, .n = 40, .k = 55, .dtype = DType::bf16}); }
TEST_P(GemmDtype, f16) { check({.m = 21, .n = 40, .k = 55, .dtype = DType::f16}); }
TEST_P(GemmDtype, i32) { check({.m = 21, .n = 40, .k = 55, .dtype = DType::i32}); }

INSTANTIATE_TEST_SUITE_P(Backends, Gemm, testing::ValuesIn(backends_under_test()),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Backends, GemmDtype, testing::ValuesIn(backends_under_test()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace kiln::conformance
