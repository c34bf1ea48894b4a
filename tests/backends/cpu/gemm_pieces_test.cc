#include <gtest/gtest.h>

#include "backends/cpu/compile/gemm/outer_product.h"
#include "frontend/kernel/affine.h"
#include "tests/backends/cpu/kernel_check.h"
#include "tests/conformance/windows_case.h"

namespace kiln::cpu {
namespace {

/// Windows of kernel x kernel over an image of height x width, `stride` apart, in every channel.
struct Case {
  int64_t channels = 3, height = 9, width = 11, kernel = 3, stride = 1, filters = 5;
  DType dtype = DType::f32;
  std::optional<DType> loaded = std::nullopt;  // what the image lies in memory as, where that is not `dtype`
  bool channels_last = false;
  /// Sums run over positions rather than over what a window sees.
  bool sums_positions = false;

  std::vector<int64_t> positions() const { return {(height - kernel) / stride + 1, (width - kernel) / stride + 1}; }
};

/// filters x windows; the windows are B, or exchanged A. Two images, as a batch.
KernelSpec spec_of(const Case& c, bool windows_are_a) {
  return conformance::windows_product({.channels = c.channels,
                                       .filters = c.filters,
                                       .extents = {c.height, c.width},
                                       .kernel = {c.kernel, c.kernel},
                                       .stride = {c.stride, c.stride},
                                       .dtype = c.dtype,
                                       .loaded = c.loaded,
                                       .channels_last = c.channels_last,
                                       .sums_positions = c.sums_positions,
                                       .windows_are_a = windows_are_a});
}

void check(const Case& c) {
  for (const bool windows_are_a : {false, true}) {
    const KernelSpec spec = spec_of(c, windows_are_a);
    ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
    const auto k = static_cast<double>(std::get<GemmSpec>(spec.kernel).k);
    const DType sum = accumulator_of(c.dtype);
    const double tolerance = sum == DType::f64 ? 1e-15 + 1e-16 * k : is_floating(sum) ? 1e-6 + 5e-8 * k : 0;
    for (const CpuTarget& target : ladder()) {
      if (!host_runs(target)) continue;
      const size_t candidates = default_candidates(CpuCompileBackend(), spec, {"cpu", std::string(target.name)}).size();
      for (size_t i = 0; i < candidates; i += 3) {
        check_kernel(spec, target, tolerance, i, 1 + i % 3);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(GemmPieces, rows_of_pixels_shorter_and_longer_than_a_vector) {
  for (const int64_t width : {3, 4, 7, 9, 18, 19, 34, 50}) check({.width = width});
}

TEST(GemmPieces, a_stride_spreads_the_lanes) {
  for (const int64_t stride : {2, 3}) check({.height = 13, .width = 45, .stride = stride});
}

TEST(GemmPieces, sums_over_positions_run_across_rows) {
  for (const int64_t width : {4, 9, 23, 40}) check({.width = width, .filters = 17, .sums_positions = true});
  check({.height = 12, .width = 40, .stride = 2, .sums_positions = true});
}

TEST(GemmPieces, several_blocks_of_k_begin_within_a_window) {
  check({.channels = 140, .height = 5, .width = 8, .filters = 20});
  check({.channels = 70, .height = 9, .width = 9, .kernel = 5, .filters = 20});
  check({.channels = 2, .height = 60, .width = 40, .filters = 9, .sums_positions = true});
}

TEST(GemmPieces, channels_may_lie_innermost) {
  check({.channels = 20, .channels_last = true});
  check({.channels = 20, .channels_last = true, .sums_positions = true});
}

TEST(GemmPieces, every_dtype_and_what_is_widened_to_it) {
  for (const DType dtype : {DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::i8}) {
    check({.width = 13, .filters = 17, .dtype = dtype});
    check({.width = 13, .kernel = 2, .filters = 9, .dtype = dtype, .sums_positions = true});
  }
  check({.width = 13, .dtype = DType::f32, .loaded = DType::bf16});
  check({.width = 13, .dtype = DType::f32, .loaded = DType::i8, .sums_positions = true});
}

/// Windows that lie in memory as a matrix: few filters stream it, in blocks shorter than a window.
TEST(GemmPieces, blocks_of_k_may_be_shorter_than_a_window) {
  constexpr int64_t m = 2, n = 600, k = 3 * 633;
  Body a{{{.op = ScalarOp::load, .dtype = DType::f32}}, {{.buffer = 0, .strides = {k, 1}}}};
  Body b{{{.op = ScalarOp::load, .dtype = DType::f32}}, {{.buffer = 1, .strides = {n, 1}}}};
  Body epilogue{{{.op = ScalarOp::accumulator, .dtype = DType::f32}}, {{.buffer = 2, .strides = {n, 1}}}};
  GemmSpec gemm{.m = m, .n = n, .k = k, .window = 633, .a = a, .b = b, .a_value = 0, .b_value = 0};
  gemm.epilogue = epilogue;
  gemm.stores = {{0, 0, StoreMode::assign}};
  const KernelSpec spec{{{DType::f32, m * k, BufferRole::input},
                         {DType::f32, k * n, BufferRole::input},
                         {DType::f32, m * n, BufferRole::output}},
                        std::move(gemm)};
  for (const CpuTarget* target : runnable_targets()) {
    const auto& candidates = candidates_of(spec, *target);
    EXPECT_TRUE(std::ranges::any_of(
        candidates, [](const Schedule& each) { return each.description.find(" k 16 ") != std::string::npos; }));
    for (size_t i = 0; i < candidates.size(); i += 3) check_kernel(spec, *target, 1e-4, i, 2);
  }
}

/// Σ_k A[m, k] B[k, n] of the image's first windows and every filter, as multiply-adds in f32: 16 channels are a run from zero,
/// and in it each element of the window goes through the channels before the next does.
float in_runs(const Case& c, const std::vector<GuardedBuffer>& buffers, int64_t filter, int64_t y, int64_t x) {
  constexpr int64_t k_channels = 16;
  const int64_t window = c.kernel * c.kernel, k = c.channels * window;
  float total = 0;
  for (int64_t first = 0; first < c.channels; first += k_channels) {
    float run = 0;
    for (int64_t element = 0; element < window; ++element) {
      for (int64_t channel = first; channel < std::min(first + k_channels, c.channels); ++channel) {
        const int64_t row = y * c.stride + element / c.kernel, column = x * c.stride + element % c.kernel;
        run = std::fma(static_cast<float>(buffers[0].at(filter * k + channel * window + element)),
                       static_cast<float>(buffers[1].at((channel * c.height + row) * c.width + column)), run);
      }
    }
    total += run;
  }
  return total;
}

TEST(GemmPieces, sums_of_windows_go_through_the_channels_of_a_run_first) {
  for (const Case& c : {Case{.channels = 3, .filters = 16}, Case{.channels = 40, .width = 24, .filters = 9},
                        Case{.channels = 150, .height = 11, .width = 30, .stride = 2, .filters = 33}}) {
    const KernelSpec spec = spec_of(c, false);
    const auto positions = c.positions();
    for (const CpuTarget* target : runnable_targets()) {
      if (!target->has(Feature::fma)) continue;
      for (const Schedule& schedule : candidates_of(spec, *target)) {
        const auto image = CpuCompileBackend().compile(spec, schedule, {"cpu", std::string(target->name)});
        ASSERT_TRUE(image.ok()) << image.status().to_string();
        std::vector<GuardedBuffer> buffers = make_buffers(spec, 7);
        run_in_ranges(LoadedImage(*image).executable(), pointers(buffers), 1);
        for (int64_t i = 0; i < c.filters * positions[0] * positions[1]; ++i) {
          const int64_t filter = i / (positions[0] * positions[1]), place = i % (positions[0] * positions[1]);
          ASSERT_EQ(buffers[2].at(i), in_runs(c, buffers, filter, place / positions[1], place % positions[1]))
              << target->name << ": " << schedule.description << ", element " << i;
        }
      }
    }
  }
}

/// m x k times k x n, B in panels of `lanes` columns: [blocks][panels][steps][lanes][group].
KernelSpec spec_of_panels(int64_t m, int64_t n, int64_t k, int64_t blocks, int64_t lanes, int64_t group, DType dtype) {
  const int64_t block = k / blocks, panel = block * lanes;
  Body a{{{.op = ScalarOp::load, .dtype = dtype}}, {{.buffer = 0, .strides = {0, k, 1}}}};
  Body b{{{.op = ScalarOp::load, .dtype = dtype}},
         {{.buffer = 1, .strides = {0, block * n, lanes * group, 1, panel, group}}}};
  Body epilogue{{{.op = ScalarOp::accumulator, .dtype = DType::f32}}, {{.buffer = 2, .strides = {m * n, n, 1}}}};
  GemmSpec gemm{.batch = {2}, .m = m, .n = n, .k = k, .dtype = dtype, .a = a, .b = b, .a_value = 0, .b_value = 0};
  gemm.b_pieces = {{blocks, block / group, group}, {n / lanes, lanes}};
  if (group == 1) {
    gemm.b_pieces.rows.pop_back();
    gemm.b.accesses[0].strides.erase(gemm.b.accesses[0].strides.begin() + 3);
  }
  gemm.epilogue = epilogue;
  gemm.stores = {{0, 0, StoreMode::assign}};
  return {{{dtype, m * k, BufferRole::input},
           {dtype, k * n, BufferRole::input},
           {DType::f32, 2 * m * n, BufferRole::output}},
          std::move(gemm)};
}

TEST(GemmPieces, panels_of_a_vector_are_read_where_they_lie) {
  for (const CpuTarget& target : ladder()) {
    if (!host_runs(target)) continue;
    const int64_t lanes = target.vector_bytes / 4;
    for (const auto& [dtype, group] : {std::pair(DType::f32, int64_t{1}), std::pair(DType::bf16, int64_t{2})}) {
      for (const auto& [m, blocks, block] : {std::tuple(53, 1, 70), std::tuple(7, 3, 38), std::tuple(100, 2, 400)}) {
        const KernelSpec spec = spec_of_panels(m, 5 * lanes, blocks * block, blocks, lanes, group, dtype);
        ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
        const auto schedules = default_candidates(CpuCompileBackend(), spec, {"cpu", std::string(target.name)});
        const bool has_step = group == 1 || target.has(Feature::avx512_bf16);
        const auto is_placed = [](const Schedule& each) {
          return each.description.find(" b-placed") != std::string::npos;
        };
        EXPECT_EQ(std::ranges::any_of(schedules, is_placed), has_step) << target.name;
        for (size_t i = 0; i < schedules.size(); i += 5) {
          check_kernel(spec, target, 1e-6 + 5e-8 * static_cast<double>(blocks * block), i, 1 + i % 3);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(GemmPieces, windows_that_do_not_make_up_k_are_refused) {
  KernelSpec spec = spec_of({}, false);
  for (const int64_t window : {0, -9, 4}) {
    std::get<GemmSpec>(spec.kernel).window = window;
    EXPECT_EQ(validate(spec).code(), StatusCode::invalid_argument) << window;
  }
}

TEST(GemmPieces, pieces_that_do_not_make_up_the_dim_are_refused) {
  KernelSpec spec = spec_of({}, false);
  std::get<GemmSpec>(spec.kernel).b_pieces.columns.front() += 1;
  EXPECT_EQ(validate(spec).code(), StatusCode::invalid_argument);
  spec = spec_of({}, false);
  Body& windows = std::get<GemmSpec>(spec.kernel).b;
  windows.exprs.push_back({.op = ScalarOp::neg, .dtype = DType::f32, .operands = {0, k_no_expr, k_no_expr}});
  std::get<GemmSpec>(spec.kernel).b_value = 1;
  EXPECT_EQ(validate(spec).code(), StatusCode::invalid_argument) << "an expression in pieces";
}

}  // namespace
}  // namespace kiln::cpu
