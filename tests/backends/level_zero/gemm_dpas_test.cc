#include <gtest/gtest.h>

#include <cmath>

#include "backends/level_zero/compile/backend.h"
#include "backends/level_zero/compile/write_kernel.h"
#include "backends/level_zero/runtime/runtime.h"
#include "tests/backends/level_zero/kernels.h"
#include "tests/conformance/check_kernel.h"
#include "tests/conformance/windows_case.h"

// Products by matrix units with schedules of every shape, on the stand-in's device. Skips where it cannot run.
namespace kiln::level_zero {
namespace {

using conformance::GemmCase;

/// down, across, rows, columns, steps. The first four are those that candidates are made of.
using Fields = std::vector<uint8_t>;
const Fields k_schedules[] = {{4, 4, 4, 2, 1}, {4, 2, 2, 2, 2}, {2, 4, 1, 2, 2}, {2, 2, 1, 1, 2},
                              {1, 1, 1, 1, 1}, {3, 2, 2, 1, 1}, {1, 3, 1, 3, 3}};

std::optional<Schedule> first_by_matrix_units(const KernelSpec& spec, const DeviceFamily& family) {
  for (const Schedule& schedule : candidates(spec, family, default_machine(family))) {
    const auto written = write_kernel(spec, schedule, family);
    if (written.ok() && (written->features & bit(Feature::matrix_units)) != 0) return schedule;
  }
  return std::nullopt;
}

/// The backend with one schedule of its products by matrix units, and no other candidate.
class OneSchedule final : public CompileBackend {
 public:
  explicit OneSchedule(Fields fields) : m_fields(std::move(fields)) {}
  std::string_view name() const override { return m_backend.name(); }
  std::vector<Target> targets() const override { return m_backend.targets(); }
  Machine default_machine(const Target& target) const override { return m_backend.default_machine(target); }
  std::string toolchain() const override { return m_backend.toolchain(); }
  Status claims(const KernelSpec& spec, const Target& target) const override { return m_backend.claims(spec, target); }
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target, const Machine&) const override {
    return {with_fields(first_by_matrix_units(spec, *find_family(target.name)).value(), m_fields)};
  }
  /// Not unimplemented, for which the check would look no further.
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override {
    auto image = m_backend.compile(spec, schedule, target);
    if (image.status().code() == StatusCode::unimplemented)
      return error(StatusCode::internal, "{}", image.status().message());
    return image;
  }

 private:
  LevelZeroCompileBackend m_backend;
  Fields m_fields;
};

/// A = half(x * 0.5), B = max(y, 0): expressions where the products' operands are mere loads.
KernelSpec with_prologues(const GemmCase& c) {
  KernelSpec spec = conformance::gemm(c);
  auto& gemm = std::get<GemmSpec>(spec.kernel);
  const DType wide = DType::f32;
  spec.buffers[0].dtype = wide;
  ScalarNode half{ScalarOp::constant, wide};
  half.immediate = 0.5;
  gemm.a.exprs = {conformance::load(wide, 0),
                  half,
                  {ScalarOp::mul, wide, {0, 1, k_no_expr}},
                  {ScalarOp::cast, c.dtype, {2, k_no_expr, k_no_expr}}};
  gemm.a_value = 3;
  gemm.b.exprs = {
      conformance::load(c.dtype, 0), {ScalarOp::constant, c.dtype}, {ScalarOp::maximum, c.dtype, {0, 1, k_no_expr}}};
  gemm.b_value = 2;
  return spec;
}

class GemmDpas : public testing::TestWithParam<Fields> {
 protected:
  void SetUp() override {
    const Discovery& discovery = LevelZeroRuntimeBackend().discover();
    if (!discovery.status.ok()) GTEST_SKIP() << discovery.status.to_string();
    const auto compile = std::make_shared<OneSchedule>(GetParam());
    m_backend = conformance::on_this_host(compile, LevelZeroRuntimeBackend(), discovery.devices[0].targets[0]);
  }

  void check(const KernelSpec& spec, conformance::CheckOptions options = {}) {
    const auto k = static_cast<double>(std::get<GemmSpec>(spec.kernel).k);
    options.tolerance_factor = 4 + std::sqrt(k);
    EXPECT_EQ(check_kernel(m_backend, spec, m_random, options), "");
  }

  conformance::BackendUnderTest m_backend;
  std::mt19937_64 m_random{32};
};

TEST_P(GemmDpas, operands_may_be_transposed) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      SCOPED_TRACE(testing::Message() << (a ? "t" : "n") << (b ? "t" : "n"));
      check(conformance::gemm({.m = 75,
                               .n = 137,
                               .k = 50,
                               .dtype = a == b ? DType::f16 : DType::bf16,
                               .a_transposed = a,
                               .b_transposed = b,
                               .stored = DType::f32}));
    }
  }
}

TEST_P(GemmDpas, whole_tiles_need_no_masks) {
  check(conformance::gemm({.m = 128, .n = 128, .k = 96, .dtype = DType::bf16, .stored = DType::f32}));
}

TEST_P(GemmDpas, batches_and_epilogues_are_as_without) {
  check(conformance::gemm({.batch = 2, .m = 9, .n = 35, .k = 17, .dtype = DType::f16, .with_bias = true}));
}

TEST_P(GemmDpas, operands_are_expressions) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    check(with_prologues({.m = 33, .n = 40, .k = 70, .dtype = dtype, .b_transposed = true, .stored = DType::f32}));
  }
}

TEST_P(GemmDpas, operands_are_windows) {
  using conformance::windows_product;
  check(windows_product({.images = 1, .channels = 7, .filters = 37, .stride = {1, 2}, .dtype = DType::bf16}));
  check(windows_product({.channels = 5,
                         .filters = 17,
                         .dtype = DType::f16,
                         .images_are_batch = false,
                         .sums_positions = true,
                         .windows_are_a = true}));
}

TEST_P(GemmDpas, nan_and_infinity_stay_in_their_rows_and_columns) {
  check(conformance::gemm({.m = 21, .n = 40, .k = 5, .dtype = DType::bf16}), {.special_values = true});
}

INSTANTIATE_TEST_SUITE_P(Schedules, GemmDpas, testing::ValuesIn(k_schedules),
                         [](const auto& info) { return fmt::format("{}", fmt::join(info.param, "_")); });

}  // namespace
}  // namespace kiln::level_zero
