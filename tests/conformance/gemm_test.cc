#include <gtest/gtest.h>

#include <cmath>

#include "tests/conformance/check_kernel.h"
#include "tests/conformance/gemm_case.h"
#include "tests/conformance/windows_case.h"

namespace kiln::conformance {
namespace {

class Gemm : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void check(const GemmCase& c, CheckOptions options = {}) { check(gemm(c), std::move(options)); }
  void check(const KernelSpec& spec, CheckOptions options = {}) {
    ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
    // Errors of a sum of k products grow with its root.
    options.tolerance_factor = 4 + std::sqrt(static_cast<double>(std::get<GemmSpec>(spec.kernel).k));
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
/// As linear layers have them.
TEST_P(GemmDtype, a_bias_for_each_column_and_gelu) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64}) {
    for (const bool gelu : {false, true}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + (gelu ? " gelu" : ""));
      check({.m = 40,
             .n = 72,
             .k = 64,
             .dtype = dtype,
             .b_transposed = true,
             .with_columns_bias = true,
             .with_gelu = gelu});
      if (HasFailure()) return;
    }
  }
  check({.batch = 2, .m = 24, .n = 40, .k = 64, .dtype = DType::bf16, .with_gelu = true});
  check({.batch = 2, .m = 24, .n = 40, .k = 64, .dtype = DType::bf16, .stored = DType::f32, .with_columns_bias = true});
}
/// As steps of a training have them.
TEST_P(GemmDtype, a_residual_and_gelu_with_what_its_gradient_needs_and_that) {
  const std::pair<DType, bool> orders[] = {
      {DType::bf16, false}, {DType::bf16, true}, {DType::f16, false}, {DType::f32, false}};
  for (const auto& [dtype, transposed] : orders) {
    SCOPED_TRACE(std::string(to_string(dtype)) + (transposed ? " t" : " n"));
    const auto with = [&](auto change) {
      GemmCase c{.m = 40, .n = 72, .k = 64, .dtype = dtype, .c_transposed = transposed};
      change(c);
      check(c);
    };
    with([](GemmCase& c) { c.with_residual = true, c.with_columns_bias = true, c.factor = 0.125, c.padding = 4; });
    with([](GemmCase& c) { c.with_gelu_input = true, c.batch = 2; });
    with([](GemmCase& c) { c.with_gelu_input = true, c.with_columns_bias = true, c.b_transposed = true; });
    with([](GemmCase& c) { c.with_gelu_gradient = true, c.padding = 8, c.factor = 0.5; });
    if (HasFailure()) return;
  }
}
TEST_P(GemmDtype, matrices_lie_in_rows_or_columns_with_gaps_and_are_shared) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + (transposed ? " t" : " n"));
      check({.batch = 3,
             .m = 40,
             .n = 56,
             .k = 48,
             .dtype = dtype,
             .a_transposed = transposed,
             .c_transposed = transposed,
             .b_is_shared = true,
             .padding = 8});
      check(
          {.m = 40, .n = 24, .k = 56, .dtype = dtype, .b_transposed = transposed, .c_transposed = true, .padding = 3});
      check({.m = 1, .n = 56, .k = 48, .dtype = dtype, .a_transposed = transposed});
      check({.m = 40, .n = 1, .k = 48, .dtype = dtype, .b_transposed = transposed});
      if (HasFailure()) return;
    }
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

/// Products of windows, with these as B and, transposed, as A.
class GemmWindows : public Gemm {
 protected:
  void check_both(WindowsCase c, const CheckOptions& options = {}) {
    for (const bool windows_are_a : {false, true}) {
      SCOPED_TRACE(windows_are_a ? "windows are A" : "windows are B");
      c.windows_are_a = windows_are_a;
      check(windows_product(c), options);
      if (HasFailure()) return;
    }
  }
  void check_in(std::initializer_list<DType> dtypes, WindowsCase c) {
    for (const DType dtype : dtypes) {
      c.dtype = dtype;
      check_both(c);
      if (HasFailure()) return;
    }
  }
};

TEST_P(GemmWindows, over_an_image) {
  check_in({DType::f32, DType::f16, DType::bf16}, {.channels = 8, .filters = 9, .extents = {9, 12}});
}
TEST_P(GemmWindows, more_than_a_tile_of_everything) {
  check_in({DType::f32, DType::bf16}, {.images = 1, .channels = 15, .filters = 69, .extents = {10, 13}});
}
TEST_P(GemmWindows, steps_and_gaps_that_differ_from_dim_to_dim) {
  check_in({DType::f32, DType::f16}, {.extents = {14, 17}, .kernel = {3, 2}, .stride = {2, 3}, .dilation = {1, 2}});
}
TEST_P(GemmWindows, over_rows_of_samples) {
  check_in({DType::f32, DType::bf16},
           {.channels = 5, .filters = 7, .extents = {53}, .kernel = {5}, .stride = {2}, .dilation = {1}});
}
TEST_P(GemmWindows, over_volumes) {
  const std::vector<int64_t> ones{1, 1, 1};
  check_in({DType::f32, DType::f16}, {.extents = {4, 5, 9}, .kernel = {2, 3, 2}, .stride = ones, .dilation = ones});
}
TEST_P(GemmWindows, of_groups_of_channels) {
  check_in({DType::f32, DType::bf16}, {.groups = 3, .channels = 4, .extents = {6, 9}});
}
TEST_P(GemmWindows, of_small_images_together) {
  check_in({DType::f32, DType::f16}, {.images = 5, .extents = {5, 6}, .images_are_batch = false});
}
TEST_P(GemmWindows, summed_over_positions) {
  check_in({DType::f32, DType::f16, DType::bf16},
           {.filters = 17, .extents = {7, 10}, .images_are_batch = false, .sums_positions = true});
}
TEST_P(GemmWindows, of_groups_summed_over_positions_some_steps_apart) {
  check_in({DType::f32, DType::bf16}, {.groups = 2,
                                       .extents = {7, 10},
                                       .stride = {2, 1},
                                       .dilation = {1, 2},
                                       .images_are_batch = false,
                                       .sums_positions = true});
}
TEST_P(GemmWindows, with_mirrored_filters) {
  check_in({DType::f32, DType::bf16}, {.groups = 2, .extents = {7, 9}, .is_mirrored = true});
}
TEST_P(GemmWindows, of_channels_that_lie_innermost) {
  check_in({DType::f32, DType::bf16}, {.channels = 16, .channels_last = true});
}
TEST_P(GemmWindows, of_what_is_widened) {
  for (const bool sums_positions : {false, true}) check_both({.loaded = DType::bf16, .sums_positions = sums_positions});
}
TEST_P(GemmWindows, in_f64) {
  check_both({.stride = {2, 1}, .dtype = DType::f64, .is_mirrored = true});
  check_both({.dtype = DType::f64, .loaded = DType::f32, .images_are_batch = false, .sums_positions = true});
}
TEST_P(GemmWindows, of_special_values_and_at_any_address) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    check_both({.filters = 64, .dtype = dtype}, {.special_values = true});
    check_both({.filters = 64, .dtype = dtype}, {.off_by_an_element = true});
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GemmWindows, testing::ValuesIn(backends_under_test()),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Backends, Gemm, testing::ValuesIn(backends_under_test()),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Backends, GemmDtype, testing::ValuesIn(backends_under_test()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace kiln::conformance
