#include <gtest/gtest.h>

#include <cmath>

#include "tests/conformance/check_kernel.h"
#include "tests/conformance/gemm_case.h"

namespace kiln::conformance {
namespace {

class Gemm : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void check(const GemmCase& c, CheckOptions options = {}) {
    const KernelSpec spec = gemm(c);
    ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
    // Errors of a sum of k products grow with its root.
    options.tolerance_factor = 4 + std::sqrt(static_cast<double>(c.k));
    const std::string why = check_kernel(GetParam(), spec, m_random, options);
    if (!why.empty()) m_skipped = why;
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

TEST_P(Gemm, a_sum_of_nothing_is_zero) { check({.m = 17, .n = 35, .k = 0, .with_bias = true}); }

TEST_P(Gemm, nan_and_infinity_stay_in_their_rows_and_columns) {
  check({.m = 21, .n = 40, .k = 5}, {.special_values = true});
}

TEST_P(Gemm, batches_are_independent) { check({.batch = 3, .m = 18, .n = 35, .k = 20, .with_bias = true}); }

class GemmDtype : public Gemm {};

TEST_P(GemmDtype, f64) { check({.m = 21, .n = 40, .k = 55, .dtype = DType::f64, .with_bias = true}); }
TEST_P(GemmDtype, bf16) { check({.m = 21, .n = 40, .k = 55, .dtype = DType::bf16}); }
TEST_P(GemmDtype, f16) { check({.m = 21, .n = 40, .k = 55, .dtype = DType::f16}); }
/// Rows that begin at multiples of 16 bytes, which copies of whole boxes ask for; tails along every dim all the same.
TEST_P(GemmDtype, half_precisions_of_aligned_rows) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + (a ? " t" : " n") + (b ? "t" : "n"));
        check({.batch = 2, .m = 136, .n = 72, .k = 200, .dtype = dtype, .a_transposed = a, .b_transposed = b});
        if (HasFailure()) return;
      }
    }
  }
}
TEST_P(GemmDtype, half_precisions_of_aligned_rows_at_any_address) {
  for (const bool transposed : {false, true}) {
    check({.m = 136, .n = 72, .k = 200, .dtype = DType::bf16, .a_transposed = transposed, .b_transposed = transposed},
          {.off_by_an_element = true});
  }
}
TEST_P(GemmDtype, half_precisions_of_nothing_and_of_special_values) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    check({.m = 24, .n = 40, .k = 0, .dtype = dtype});
    check({.m = 72, .n = 40, .k = 8, .dtype = dtype, .b_transposed = true}, {.special_values = true});
  }
}
TEST_P(GemmDtype, i8) {
  for (const std::optional<DType> stored : {std::optional<DType>(), std::optional(DType::i32)}) {
    for (const bool b : {false, true}) {
      check({.m = 21, .n = 40, .k = 55, .dtype = DType::i8, .b_transposed = b, .stored = stored});
      check({.batch = 2, .m = 33, .n = 17, .k = 130, .dtype = DType::i8, .a_transposed = b, .stored = stored},
            {.special_values = true});
      if (HasFailure()) return;
    }
  }
}
TEST_P(GemmDtype, i32) { check({.m = 21, .n = 40, .k = 55, .dtype = DType::i32}); }

INSTANTIATE_TEST_SUITE_P(Backends, Gemm, testing::ValuesIn(backends_under_test()),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Backends, GemmDtype, testing::ValuesIn(backends_under_test()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace kiln::conformance
