#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/backends/cpu/kernel_check.h"
#include "tests/conformance/gemm_case.h"

/// Products whose groups data say, on every target, in every number of tasks.
namespace kiln::cpu {
namespace {

using Along = GemmGroups::Along;
using conformance::access;
using conformance::load;

struct Case {
  int64_t groups = 1, m = 1, n = 1, k = 1;
  Along along = Along::m;
  const char* layout = "nn";  // A, B: n as written, t transposed
  DType dtype = DType::f32, ends = DType::i32;
  bool lies_along_m = false;  // C
};

Access matrix(uint32_t buffer, int64_t batch, int64_t rows, int64_t columns, bool is_transposed) {
  return is_transposed ? access(buffer, {batch, 1, rows}) : access(buffer, {batch, columns, 1});
}

/// C = 0.5 * A @ B + bias[n], where A of f32 is negated first.
KernelSpec grouped(const Case& c) {
  const bool are_rows = c.along == Along::m;
  GemmSpec gemm{.batch = {c.groups}, .m = c.m, .n = c.n, .k = c.k, .dtype = c.dtype};
  gemm.a.accesses = {matrix(0, 0, c.m, c.k, c.layout[0] == 't')};
  gemm.b.accesses = {matrix(1, are_rows ? c.k * c.n : 0, c.k, c.n, c.layout[1] == 't')};
  gemm.a.exprs = gemm.b.exprs = {load(c.dtype, 0)};
  gemm.a_value = gemm.b_value = 0;
  if (c.dtype == DType::f32) {
    gemm.a.exprs.push_back({ScalarOp::neg, c.dtype, {0, k_no_expr, k_no_expr}});
    gemm.a_value = 1;
  }
  gemm.groups = {c.along, access(2, {1})};
  const DType wide = accumulator_of(c.dtype);
  gemm.epilogue.accesses = {matrix(3, are_rows ? 0 : c.m * c.n, c.m, c.n, c.lies_along_m), access(4, {0, 0, 1})};
  gemm.epilogue.exprs = {{ScalarOp::accumulator, wide},
                         {.op = ScalarOp::constant, .dtype = wide, .immediate = 0.5},
                         {ScalarOp::mul, wide, {0, 1, k_no_expr}},
                         load(wide, 1),
                         {ScalarOp::add, wide, {2, 3, k_no_expr}}};
  if (wide != c.dtype) gemm.epilogue.exprs.push_back({ScalarOp::cast, c.dtype, {4, k_no_expr, k_no_expr}});
  gemm.stores = {{static_cast<ExprId>(gemm.epilogue.exprs.size() - 1), 0, StoreMode::assign}};
  const int64_t a = c.m * c.k, b = c.k * c.n * (are_rows ? c.groups : 1), out = c.m * c.n * (are_rows ? 1 : c.groups);
  return {{{c.dtype, a}, {c.dtype, b}, {c.ends, c.groups}, {c.dtype, out, BufferRole::output}, {wide, c.n}}, gemm};
}

/// Ends of groups of `extent`: about equal ones, all in one, all empty, some empty, and what is no list of ends.
std::vector<std::vector<int64_t>> ends_of(int64_t groups, int64_t extent, std::mt19937& random) {
  std::vector<std::vector<int64_t>> all(5, std::vector<int64_t>(static_cast<size_t>(groups)));
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(random); };
  const int64_t full = draw(0, groups - 1), most = draw(0, extent);
  for (int64_t g = 0; g < groups; ++g) {
    const auto i = static_cast<size_t>(g);
    all[0][i] = extent * (g + 1) / groups;
    all[1][i] = g < full ? 0 : extent;
    all[3][i] = draw(0, most);
    all[4][i] = draw(-extent - 3, 2 * extent + 3);
  }
  std::ranges::sort(all[3]);
  return all;
}

double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 3e-5 : dtype == DType::f16 ? 2e-3 : 1.6e-2;
}

/// Inputs with each of these ends, and what the reference makes of them.
struct Expected {
  std::vector<GuardedBuffer> inputs, outputs;
};

std::vector<Expected> expected_of(const KernelSpec& spec, const Case& c, std::mt19937& random) {
  std::vector<Expected> all;
  for (const auto& ends : ends_of(c.groups, c.along == Along::m ? c.m : c.k, random)) {
    Expected& one = all.emplace_back(make_buffers(spec, random()));
    for (int64_t g = 0; g < c.groups; ++g) one.inputs[2].set(g, static_cast<double>(ends[static_cast<size_t>(g)]));
    one.outputs = one.inputs;
    EXPECT_TRUE(run_reference(spec, pointers(one.outputs)).ok());
  }
  return all;
}

void check_by(const HostExecutable& kernel, const Expected& expected, double tolerance, uint64_t ranges,
              std::span<const int64_t> extents = {}) {
  std::vector<GuardedBuffer> ours = expected.inputs;
  run_in_ranges(kernel, pointers(ours), ranges, extents);
  for (size_t b = 0; b < ours.size(); ++b) {
    ASSERT_TRUE(ours[b].zones_are_whole()) << "buffer " << b << " was written beyond its end";
    for (int64_t i = 0; i < ours[b].elements(); ++i) {
      const double right = expected.outputs[b].at(i);
      ASSERT_LE(std::abs(ours[b].at(i) - right), tolerance * (1 + std::abs(right))) << "buffer " << b << ", " << i;
    }
  }
}

/// By code for these sizes, and by code that takes sizes from its launch.
void check(const Case& c, unsigned seed) {
  const KernelSpec spec = grouped(c);
  ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  std::mt19937 random(seed);
  const std::vector<Expected> all = expected_of(spec, c, random);
  const CpuCompileBackend backend;
  for (const CpuTarget* target : runnable_targets()) {
    const Target name{"cpu", std::string(target->name)};
    const auto check_schedule = [&](const Schedule& schedule, std::span<const int64_t> extents) {
      SCOPED_TRACE(fmt::format("{} on {}: {}", kernel_name(spec), target->name, schedule.description));
      const auto image = backend.compile(spec, schedule, name);
      ASSERT_TRUE(image.ok()) << image.status().to_string();
      const LoadedImage loaded(*image);
      for (const Expected& one : all) {
        check_by(loaded.executable(), one, tolerance(c.dtype), std::uniform_int_distribution(1, 9)(random), extents);
      }
    };
    const std::vector<Schedule> schedules = default_candidates(backend, spec, name);
    ASSERT_FALSE(schedules.empty());
    for (const Schedule& schedule : schedules) check_schedule(schedule, {});
    if (const auto sized = backend.sized(spec, name)) check_schedule(sized->candidates.front(), sized->extents);
  }
}

TEST(GemmGroups, SmallAndOddOnes) {
  unsigned seed = 0;
  for (const Along along : {Along::m, Along::k}) {
    for (const char* layout : {"nn", "nt", "tn", "tt"}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
        const bool is_odd = ++seed % 2 == 0;
        check({.groups = 1 + seed % 5,
               .m = 37,
               .n = 21 + seed % 30,
               .k = 45 + seed % 7,
               .along = along,
               .layout = layout,
               .dtype = dtype,
               .ends = is_odd ? DType::i32 : DType::i64,
               .lies_along_m = is_odd},
              seed);
      }
    }
  }
}

TEST(GemmGroups, BlocksOfEveryDim) {
  check({.groups = 6, .m = 70, .n = 150, .k = 1100, .along = Along::m, .layout = "nt"}, 1);
  check({.groups = 3, .m = 40, .n = 90, .k = 2100, .along = Along::k, .layout = "tn"}, 2);
  check({.groups = 5, .m = 90, .n = 70, .k = 2300, .along = Along::m, .layout = "nn", .dtype = DType::bf16}, 3);
  check({.groups = 4, .m = 30, .n = 70, .k = 4501, .along = Along::k, .layout = "tn", .dtype = DType::bf16}, 4);
}

TEST(GemmGroups, FewRowsEach) {
  for (const char* layout : {"nn", "nt"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      check({.groups = 16, .m = 9, .n = 100, .k = 70, .layout = layout, .dtype = dtype}, 5);
      check({.groups = 2, .m = 1, .n = 1, .k = 1, .layout = layout, .dtype = dtype}, 6);
    }
  }
}

TEST(GemmGroups, OneCodeServesOtherSizes) {
  const CpuCompileBackend backend;
  std::mt19937 random(9);
  for (const Along along : {Along::m, Along::k}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Case known{.groups = 5, .m = 300, .n = 150, .k = 400, .along = along, .dtype = dtype};
      const Case other{.groups = 6, .m = 420, .n = 171, .k = 334, .along = along, .dtype = dtype};
      const KernelSpec made_of = grouped(known), spec = grouped(other);
      const std::vector<Expected> all = expected_of(spec, other, random);
      for (const CpuTarget* target : runnable_targets()) {
        const Target name{"cpu", std::string(target->name)};
        const auto sized = backend.sized(made_of, name), same = backend.sized(spec, name);
        ASSERT_TRUE(sized && same && sized->form == same->form) << kernel_name(spec) << " on " << target->name;
        const LoadedImage loaded(*backend.compile(made_of, sized->candidates.front(), name));
        for (const Expected& one : all) check_by(loaded.executable(), one, tolerance(dtype), 5, same->extents);
      }
    }
  }
}

TEST(GemmGroups, WhatIsCutIntoGroupsHasNoBatch) {
  KernelSpec spec = grouped({.groups = 3, .m = 4, .n = 5, .k = 6});
  auto& gemm = std::get<GemmSpec>(spec.kernel);
  ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  gemm.a.accesses[0].strides[0] = 1;
  spec.buffers[0].elements = 1000;
  EXPECT_EQ(validate(spec).code(), StatusCode::invalid_argument);
  gemm.a.accesses[0].strides[0] = 0;
  gemm.groups->ends.strides[0] = 2;
  EXPECT_EQ(validate(spec).code(), StatusCode::invalid_argument) << "the last end lies outside";
}

}  // namespace
}  // namespace kiln::cpu
