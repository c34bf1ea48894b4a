#include <gtest/gtest.h>

#include "backends/cpu/compile/loops/schedule.h"
#include "tests/backends/cpu/kernel_check.h"
#include "tests/conformance/loops_builder.h"

namespace kiln::cpu {
namespace {

using conformance::LoopsBuilder;

/// Sums over all dims but the first; strides of the input.
KernelSpec sums(const std::vector<int64_t>& extents, const std::vector<int64_t>& strides) {
  LoopsBuilder b(extents, 1);
  const uint32_t sum = b.reduce(Combiner::sum, b.input(DType::f32, strides));
  b.next_stage();
  std::vector<int64_t> of_row(extents.size(), 0);
  of_row[0] = 1;
  b.output(b.reduced(sum), of_row);
  return b.build(true);
}

Schedule encoded(const LoopsSchedule& choices) { return {encode_choices(choices), choices.describe()}; }

TEST(Loops, rounding_of_sums_grows_with_the_root_of_a_run_not_with_their_length) {
  constexpr int64_t run = 128;  // one running sum of 5000 terms rounds 4.5 times as much, of 50257 terms 7 times
  for (const int64_t length : {5000, 50257}) {
    expect_runs(sums({32, length}, {1, 32}), length, run);      // of columns
    expect_runs(sums({32, length}, {length, 1}), length, run);  // of rows
  }
  expect_runs(sums({48, 1700, 3}, {3, 200, 1}), 5100, run);
  expect_runs(sums({48, 3, 1700}, {1, 48, 200}), 5100, run);
  expect_runs(sums({48, 400, 100}, {1, 48, 50}), 40000, run);
  expect_runs(sums({48, 200, 201}, {1, 48, 50}), 40200, run);
}

TEST(Loops, a_product_goes_into_a_sum_before_it_is_rounded) {
  LoopsBuilder b({40, 2}, 1);
  const ExprId product = b.op(ScalarOp::mul, b.input(DType::f32, {1, 40}), b.input(DType::f32, {1, 40}));
  const uint32_t sum = b.reduce(Combiner::sum, product);
  b.next_stage();
  b.output(b.reduced(sum), {1, 0});
  const KernelSpec spec = b.build(true);
  for (const CpuTarget* target : runnable_targets()) {
    if (!target->has(Feature::fma)) continue;
    std::vector<GuardedBuffer> buffers = make_buffers(spec, 7);
    for (int64_t i = 0; i < 40; ++i) {  // -(x y) as rounded, and x y: what is left is the error of rounding it
      buffers[0].set(i, -buffers[0].at(40 + i) * buffers[1].at(40 + i));
      buffers[1].set(i, 1);
    }
    check_schedule_on(spec, std::move(buffers), *target, 1e-12, encoded(LoopsSchedule{.lane_dim = 0, .lanes = 4}));
  }
}

TEST(Loops, schedules_of_no_list_are_as_good) {
  const KernelSpec spec = sums({48, 5, 70}, {1, 48, 240});
  for (const CpuTarget* target : runnable_targets()) {
    for (const int8_t dim : {0, 1, 2}) {
      const Schedule schedule = encoded({.lane_dim = dim, .lanes = 2, .unroll = 8});
      const Target name{"cpu", std::string(target->name)};
      for (const Schedule& candidate : default_candidates(CpuCompileBackend(), spec, name)) {
        ASSERT_NE(candidate.bytes, schedule.bytes);
      }
      check_schedule_on(spec, make_buffers(spec, 7), *target, 1e-5, schedule);
    }
  }
}

/// [a, b, c] from [a, c, b], and the sum of two such planes.
KernelSpec transposed(int64_t a, int64_t b, int64_t c) {
  LoopsBuilder builder({a, b, c, 2}, 3);
  const uint32_t sum = builder.reduce(Combiner::sum, builder.input(DType::f32, {b * c, 1, b, a * b * c}));
  builder.next_stage();
  builder.output(builder.reduced(sum), {b * c, c, 1, 0});
  return builder.build(true);
}

TEST(Loops, lanes_that_lie_apart_stand_outside_of_neighbours_between_them) {
  const LoopsSchedule along_c{.lane_dim = 2, .lanes = 4, .unroll = 2}, along_b{.lane_dim = 1, .lanes = 4, .unroll = 2};
  const auto dims_of = [](const KernelSpec& spec, const LoopsSchedule& schedule) {
    std::vector<int> dims;
    for (const auto& loop : loops_grid(std::get<LoopsSpec>(spec.kernel), schedule).order) dims.push_back(loop.dim);
    return dims;
  };
  EXPECT_EQ(dims_of(transposed(3, 37, 150), along_c), (std::vector<int>{0, 2, 1}));
  EXPECT_EQ(dims_of(transposed(3, 37, 150), along_b), (std::vector<int>{0, 1, 2}));  // of lines to store to
  EXPECT_EQ(dims_of(transposed(3, 37, 8), along_c), (std::vector<int>{0, 1, 2}));    // no more than are in flight
  // Tasks are rounds of a, of blocks of lanes, of what is inside of these.
  for (const auto& [a, b, c] : {std::tuple(70, 37, 19), std::tuple(3, 37, 150), std::tuple(2, 600, 21)}) {
    for (const CpuTarget* target : runnable_targets()) {
      const KernelSpec spec = transposed(a, b, c);
      for (const LoopsSchedule& schedule : {along_b, along_c}) {
        check_schedule_on(spec, make_buffers(spec, 7), *target, 1e-6, encoded(schedule));
      }
    }
  }
}

TEST(Loops, what_is_put_in_turn_is_stored_between_its_neighbours) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i8}) {
    for (const int64_t count : {2, 3, 4, 5}) {
      LoopsBuilder b({75, count}, 2);
      b.output(b.input(dtype, {1, 75}), {count, 1});
      const KernelSpec spec = b.build(true);
      for (const CpuTarget* target : runnable_targets()) {
        check_schedule_on(spec, make_buffers(spec, 7), *target, 0, encoded({.lane_dim = 0, .lanes = 4, .unroll = 2}));
      }
    }
  }
}

/// Windows of an image's channels, times weights of each channel, summed: [channels, height, width] positions.
struct Windows {
  int64_t channels, height, width, kernel;
  int64_t stride = 1, dilation = 1;
  DType dtype = DType::f32;

  KernelSpec sums() const {
    LoopsBuilder b({channels, height, width, kernel, kernel}, 3);
    const int64_t seen = dilation * (kernel - 1) + 1, row = (width - 1) * stride + seen;
    const ExprId image =
        b.input(dtype, {((height - 1) * stride + seen) * row, stride * row, stride, dilation * row, dilation});
    const ExprId weights = b.input(dtype, {kernel * kernel, 0, 0, kernel, 1});
    const DType wide = accumulator_of(dtype);
    const uint32_t sum = b.reduce(Combiner::sum, b.op(ScalarOp::mul, b.cast(image, wide), b.cast(weights, wide)));
    b.next_stage();
    b.output(b.cast(b.reduced(sum), dtype), {height * width, width, 1, 0, 0});
    return b.build(true);
  }
};

TEST(Loops, vectors_in_flight_may_lie_along_any_parallel_dim) {
  const std::vector<Windows> all = {
      {2, 100, 45, 3, 2}, {70, 4, 7, 5}, {3, 9, 21, 5, 3, 2, DType::f64}, {3, 9, 21, 3, 1, 1, DType::bf16}};
  for (const Windows& windows : all) {
    const KernelSpec spec = windows.sums();
    const double tolerance = windows.dtype == DType::bf16 ? 1e-2 : 1e-5;
    for (const CpuTarget* target : runnable_targets()) {
      for (const LoopsSchedule& schedule : {LoopsSchedule{.lane_dim = 2, .lanes = 4, .unroll = 3, .unroll_dim = 1},
                                            {.lane_dim = 2, .lanes = 4, .unroll = 8, .unroll_dim = 0},
                                            {.lane_dim = 1, .lanes = 4, .unroll = 5, .unroll_dim = 2}}) {
        check_schedule_on(spec, make_buffers(spec, 7), *target, tolerance, encoded(schedule), 3);
      }
      check_kernel(spec, *target, tolerance);
    }
  }
}

/// The hot loop of the first candidate, as assembly.
std::string hot_loop_of(const KernelSpec& spec, const Target& target) {
  const CpuCompileBackend backend;
  const auto image = backend.compile(spec, default_candidates(backend, spec, target).front(), target);
  EXPECT_TRUE(image.ok()) << image.status().to_string();
  const std::string text = backend.disassemble(*image, target).value();
  const size_t start = text.find("# hot loop: ");
  return text.substr(start, text.find("# end of the hot loop") - start);
}

TEST(Loops, windows_that_overlap_are_loaded_once_for_all_vectors_in_flight) {
  const auto count = [](const std::string& text, std::string_view wanted) {
    int64_t found = 0;
    for (size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) ++found;
    return found;
  };
  for (const CpuTarget* target : runnable_targets()) {
    if (!target->has(Feature::fma)) continue;  // whose products are loads, too
    const Target name{"cpu", std::string(target->name)};
    for (const Windows& windows : {Windows{4, 56, 56, 7}, {4, 14, 14, 5}, {4, 28, 28, 5, 1, 2}}) {
      const std::string loop = hot_loop_of(windows.sums(), name);
      const int64_t products = count(loop, "vfmadd"), loads = count(loop, "ptr [");
      EXPECT_LT(loads, products) << loop;
      EXPECT_GT(products, 0) << loop;
    }
  }
}

TEST(Loops, vectors_in_flight_lie_along_rows_whose_windows_overlap) {
  for (const CpuTarget* target : runnable_targets()) {
    const auto first_of = [&](const Windows& windows) {
      return ranked_schedules(std::get<LoopsSpec>(windows.sums().kernel), *target).front();
    };
    const bool has_masks = target->has(Feature::avx512);  // or what lies apart may not be worth lanes
    for (const int64_t stride : has_masks ? std::vector<int64_t>{1, 2, 3} : std::vector<int64_t>{1}) {
      const LoopsSchedule schedule = first_of({4, 28, 28, 7, stride});
      EXPECT_EQ(schedule.unroll_dim, 1) << target->name << ", stride " << stride;
      EXPECT_EQ(schedule.lane_dim, 2);
      EXPECT_LT((1 + stride) * schedule.unroll, has_masks ? 32 : 16) << "sums, and pixels that are seen again";
    }
    EXPECT_EQ(first_of({4, 28, 28, 3, 3}).unroll_dim, -1) << "windows side by side";
    EXPECT_EQ(first_of({4, 7, 7, 3}).unroll, has_masks ? 7 : 4) << "rounds that are even";
    EXPECT_EQ(first_of({4, 7, 7, 3}).lanes, std::min(8, target->vector_bytes / 4)) << "of which one is idle";
  }
}

TEST(Loops, what_is_done_once_a_row_does_not_say_where_lanes_lie) {
  // Windows' sums, with something that is added and stored as pixels with all their channels.
  const int64_t channels = 64, side = 14, kernel = 7, seen = side + kernel - 1;
  LoopsBuilder b({side, side, channels, kernel, kernel}, 3);
  const ExprId image = b.input(DType::f32, {seen, 1, seen * seen, seen, 1});
  const ExprId weights = b.input(DType::f32, {0, 0, kernel * kernel, kernel, 1});
  const uint32_t sum = b.reduce(Combiner::sum, b.op(ScalarOp::mul, image, weights));
  b.next_stage();
  const ExprId residual = b.input(DType::f32, {side * channels, channels, 1, 0, 0});
  b.output(b.op(ScalarOp::add, residual, b.reduced(sum)), {side * channels, channels, 1, 0, 0});
  const KernelSpec spec = b.build(true);
  for (const CpuTarget* target : runnable_targets()) {
    EXPECT_EQ(ranked_schedules(std::get<LoopsSpec>(spec.kernel), *target).front().lane_dim, 1) << target->name;
    check_kernel(spec, *target, 1e-5);
  }
}

TEST(Loops, schedules_that_the_loops_cannot_be_laid_by_are_refused) {
  const KernelSpec spec = sums({48, 70}, {70, 1});
  for (const CpuTarget* target : runnable_targets()) {
    expect_refused(spec, *target, LoopsSchedule{.lane_dim = 2, .lanes = 4}, "there is no such dim");
    expect_refused(spec, *target, LoopsSchedule{.lane_dim = -1, .lanes = 4}, "there is no such dim");
    expect_refused(spec, *target, LoopsSchedule{.lane_dim = 1, .lanes = 3}, "no such number of lanes");
    expect_refused(spec, *target, LoopsSchedule{.lane_dim = 1, .lanes = 32}, "no such number of lanes");
    expect_refused(spec, *target, LoopsSchedule{.lane_dim = 1, .lanes = 4, .unroll = 16}, "no such number of vectors");
    expect_refused(spec, *target, LoopsSchedule{.lane_dim = 0, .lanes = 1, .unroll = 2}, "no such number of lanes");
    const KernelSpec windows = Windows{4, 28, 28, 3}.sums();
    for (const int8_t dim : {-2, 2, 3, 5}) {  // none, the lanes', reduced, none
      const LoopsSchedule schedule{.lane_dim = 2, .lanes = 4, .unroll = 2, .unroll_dim = dim};
      expect_refused(windows, *target, schedule, "vectors cannot lie along that dim");
    }
    const LoopsSchedule of_a_row{.lane_dim = 4, .lanes = 4, .unroll = 2, .unroll_dim = 1};
    expect_refused(windows, *target, of_a_row, "vectors cannot lie along that dim");
    const LoopsSchedule none{.lane_dim = 2, .lanes = 4, .unroll = 0, .unroll_dim = 1};
    expect_refused(windows, *target, none, "no such number of vectors");
  }
  // Both dims are added into one element each: only in order.
  LoopsBuilder b({20, 30}, 2);
  const ExprId x = b.input(DType::f32, {30, 1});
  b.output(x, {0, 1});
  const KernelSpec onto_a_row = b.build();
  expect_refused(onto_a_row, *runnable_targets().front(), LoopsSchedule{.lane_dim = 0, .lanes = 4},
                 "lanes cannot lie along that dim");
}

TEST(Loops, bytes_of_schedules_are_trusted_with_nothing) {
  for (const CpuTarget* target : runnable_targets()) {
    expect_bytes_are_trusted_with_nothing<LoopsSchedule>(sums({48, 70}, {70, 1}), *target);
  }
}

}  // namespace
}  // namespace kiln::cpu
