#include <gtest/gtest.h>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/compile/gemm/dot.h"
#include "backends/cpu/compile/gemm/outer_product.h"
#include "backends/schedule_bytes.h"
#include "base/ceil_div.h"

namespace kiln::cpu {
namespace {

Machine machine_of(uint32_t cores, uint64_t second_level_bytes = 1 << 20) {
  return {.cores = cores, .first_level_bytes = 32 << 10, .second_level_bytes = second_level_bytes};
}

/// Rows of A are `row` elements apart, k where that is 0. Columns of B are contiguous along k, as weights are, or along n.
KernelSpec product_of(int64_t m, int64_t n, int64_t k, bool has_weights, int64_t row = 0, DType dtype = DType::f32) {
  if (row == 0) row = k;
  const Body load{{{.op = ScalarOp::load, .dtype = dtype}}, {}};
  Body a = load, b = load;
  a.accesses = {{.buffer = 0, .strides = {row, 1}}};
  b.accesses = {{.buffer = 1, .strides = has_weights ? std::vector<int64_t>{1, k} : std::vector<int64_t>{n, 1}}};
  GemmSpec gemm{.m = m, .n = n, .k = k, .dtype = dtype, .a = a, .b = b, .a_value = 0, .b_value = 0};
  gemm.epilogue = {{{.op = ScalarOp::accumulator, .dtype = DType::f32}}, {{.buffer = 2, .strides = {n, 1}}}};
  gemm.stores = {{0, 0, StoreMode::assign}};
  return {
      {{dtype, m * row, BufferRole::input}, {dtype, n * k, BufferRole::input}, {DType::f32, m * n, BufferRole::output}},
      std::move(gemm)};
}

const CpuTarget& wide_target() { return *find_target("x86-64-v4"); }

/// What the model likes best, and the form it is for.
OuterProductSchedule first_schedule(const KernelSpec& spec, const Machine& machine) {
  EXPECT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  const auto schedules = CpuCompileBackend().candidates(spec, {"cpu", std::string(wide_target().name)}, machine);
  const auto choices = parse_choices<OuterProductSchedule>(schedules.front().bytes);
  EXPECT_TRUE(choices.ok()) << schedules.front().description;
  return *choices;
}

GemmGrid grid_of(const KernelSpec& spec, const OuterProductSchedule& schedule) {
  const GemmTypes types = *widened(spec, wide_target());
  const KernelSpec form = oriented(spec, schedule.exchanged);
  const GemmProblem problem = analyse_gemm(form, wide_target(), types);
  return {schedule.blocking(problem), problem};
}

TEST(GemmSchedule, slabs_grow_with_the_second_level_cache) {
  const KernelSpec spec = product_of(512, 4096, 768, false);
  const auto slab_on = [&](uint64_t second_level_bytes) {
    const OuterProductSchedule schedule = first_schedule(spec, machine_of(1, second_level_bytes));
    return schedule.slab_vectors * schedule.k_block;
  };
  EXPECT_GT(slab_on(4 << 20), slab_on(1 << 20));
  EXPECT_GT(slab_on(1 << 20), slab_on(256 << 10));
}

TEST(GemmSchedule, threads_share_whole_slabs_of_what_is_packed) {
  for (const uint32_t cores : {2u, 4u, 8u}) {
    for (const int64_t n : {768, 1024, 1536, 3072, 50257}) {
      const KernelSpec spec = product_of(512, n, 1000, true);
      const OuterProductSchedule schedule = first_schedule(spec, machine_of(cores));
      const GemmGrid grid = grid_of(spec, schedule);
      const int64_t tasks = grid.slabs.count * grid.parts.count, most = ceil_div(tasks, int64_t{cores});
      EXPECT_LE(static_cast<double>(most * cores), 1.1 * static_cast<double>(tasks)) << n << " on " << cores;
      EXPECT_EQ(schedule.row_parts, 1u) << n << " on " << cores;
    }
  }
}

TEST(GemmSchedule, threads_share_the_rows_where_columns_are_few) {
  const OuterProductSchedule schedule = first_schedule(product_of(4096, 96, 512, true), machine_of(2));
  EXPECT_EQ(schedule.row_parts, 2u);
}

TEST(GemmSchedule, rows_that_share_cache_sets_are_no_more_than_these_hold) {
  for (const int64_t row : {4096, 4096 + 16}) {
    const KernelSpec spec = product_of(256, 4096, 4000, true, row);
    EXPECT_EQ(first_schedule(spec, machine_of(2)).tile_rows < 8, row == 4096) << row;
  }
}

TEST(GemmSchedule, rows_of_results_that_share_a_cache_set_are_no_columns_unless_k_is_long) {
  const auto is_exchanged = [](int64_t m, int64_t n, int64_t k) {
    return first_schedule(product_of(m, n, k, true), machine_of(2)).exchanged;
  };
  EXPECT_TRUE(is_exchanged(64, 3088, 768));
  EXPECT_FALSE(is_exchanged(64, 3072, 768));
  EXPECT_TRUE(is_exchanged(64, 3072, 1536));
  EXPECT_TRUE(is_exchanged(32, 3072, 384));
}

TEST(GemmSchedule, rows_of_pairs_that_fill_their_vectors_are_packed) {
  for (const int64_t m : {8, 12, 16, 17, 23, 24, 32, 40, 64}) {
    const KernelSpec spec = product_of(m, 4608, 3584, true, 0, DType::bf16);
    const auto schedules = CpuCompileBackend().candidates(spec, {"cpu", "x86-64-v4-bf16"}, machine_of(2));
    const auto tiles = parse_choices<Bf16OuterProductSchedule>(schedules.front().bytes);
    EXPECT_EQ(tiles.ok() && tiles->exchanged, m == 16 || m >= 24) << m << " rows: " << schedules.front().description;
    for (const Schedule& each : schedules)
      EXPECT_FALSE(parse_choices<DotSchedule>(each.bytes).ok()) << each.description;
  }
}

}  // namespace
}  // namespace kiln::cpu
