#include "backends/level_zero/compile/write_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/level_zero/compile/backend.h"
#include "backends/level_zero/spirv_check.h"
#include "backends/schedule_bytes.h"
#include "tests/backends/level_zero/kernels.h"

namespace kiln::level_zero {
namespace {

using testing::HasSubstr;
using testing::Not;

Expected<PortableKernel> write(const KernelSpec& spec) {
  return write_kernel(spec, candidates(spec, families()[0], default_machine(families()[0])).front(), families()[0]);
}

TEST(WriteKernel, the_chosen_kernels_are_valid_modules_with_every_schedule) {
  for (const NamedKernel& kernel : chosen_kernels()) {
    for (const DeviceFamily& family : families()) {
      ASSERT_TRUE(claims(kernel.spec, family).ok()) << kernel.name;
      for (const Schedule& schedule : candidates(kernel.spec, family, default_machine(family))) {
        const auto written = write_kernel(kernel.spec, schedule, family);
        ASSERT_TRUE(written.ok()) << kernel.name << ": " << written.status().to_string();
        EXPECT_TRUE(check_spirv_form(written->spirv).ok());
      }
    }
  }
}

TEST(WriteKernel, elements_that_32_bits_do_not_count_are_addressed) {
  constexpr int64_t k_many = int64_t{1} << 32;
  LoopsBuilder b({2, k_many}, 1);
  const uint32_t sum = b.reduce(Combiner::sum, b.input(DType::f32, {k_many, 1}));
  b.next_stage();
  b.output(b.reduced(sum), {1, 0});
  const KernelSpec product = conformance::gemm({.m = 1 << 17, .n = 1 << 16, .k = 64, .dtype = DType::f16});
  for (const KernelSpec& spec : {b.build(/*last_is_per_row=*/true), product, pointwise(DType::f32, 2, k_many)}) {
    ASSERT_TRUE(claims(spec, families()[0]).ok()) << kernel_name(spec);
    for (const Schedule& schedule : candidates(spec, families()[0], default_machine(families()[0]))) {
      const auto written = write_kernel(spec, schedule, families()[0]);
      EXPECT_TRUE(written.ok()) << written.status().to_string();
    }
  }
  EXPECT_EQ(claims(pointwise(DType::u8, 256, k_many), families()[0]).code(), StatusCode::unimplemented);
}

TEST(WriteKernel, a_backends_image_is_shown_in_its_portable_form) {
  const LevelZeroCompileBackend backend;
  const KernelSpec spec = conformance::gemm({.m = 64, .n = 64, .k = 64});
  const Target target = backend.targets().front();
  const auto image = backend.compile(spec, default_candidates(backend, spec, target).front(), target);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  const auto text = backend.disassemble(*image, target);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_THAT(*text, HasSubstr("OpEntryPoint Kernel"));
  EXPECT_EQ(backend.disassemble({}, target).status().code(), StatusCode::data_loss);
}

TEST(WriteKernel, equal_specs_give_equal_bytes) {
  for (const NamedKernel& kernel : chosen_kernels()) {
    EXPECT_EQ(write(kernel.spec).value().spirv, write(kernel.spec).value().spirv) << kernel.name;
  }
}

TEST(WriteKernel, a_product_uses_local_memory_and_shuffles_of_the_sub_group) {
  const auto text = disassemble(write(conformance::gemm({.m = 64, .n = 64, .k = 64})).value().spirv);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("OpSubgroupShuffleINTEL"));
  EXPECT_THAT(*text, HasSubstr("Workgroup"));
  EXPECT_THAT(*text, HasSubstr("OpControlBarrier"));
  EXPECT_THAT(*text, HasSubstr("SubgroupSize 16"));
}

TEST(WriteKernel, a_product_of_halves_imports_the_function_of_its_familys_matrix_units) {
  const auto imported_by = [](const char* family_name, DType dtype) {
    const DeviceFamily& family = *find_family(family_name);
    const KernelSpec spec = conformance::gemm({.m = 64, .n = 64, .k = 64, .dtype = dtype});
    const Schedule schedule = candidates(spec, family, default_machine(family)).front();
    return disassemble(write_kernel(spec, schedule, family).value().spirv).value();
  };
  const std::string on_pvc = imported_by("pvc", DType::bf16), on_dg2 = imported_by("dg2", DType::f16);
  EXPECT_THAT(on_pvc, HasSubstr("\"_Z40intel_sub_group_bf16_bf16_matrix_mad_k16Dv8_sDv8_iDv8_f\" Import"));
  EXPECT_THAT(on_pvc, HasSubstr("SubgroupSize 16"));
  EXPECT_THAT(on_dg2, HasSubstr("\"_Z38intel_sub_group_f16_f16_matrix_mad_k16Dv8_iS_Dv8_f\" Import"));
  EXPECT_THAT(on_dg2, HasSubstr("SubgroupSize 8"));
  EXPECT_THAT(imported_by("pvc", DType::f32), Not(HasSubstr("LinkageAttributes")));
}

TEST(WriteKernel, products_of_one_row_leave_matrix_units_for_later) {
  for (const DeviceFamily& family : families()) {
    const KernelSpec spec = conformance::gemm({.m = 1, .n = 4096, .k = 4096, .dtype = DType::f16});
    const auto needs_them = [&](const Schedule& schedule) {
      return (write_kernel(spec, schedule, family).value().features & bit(Feature::matrix_units)) != 0;
    };
    const std::vector<Schedule> schedules = candidates(spec, family, default_machine(family));
    EXPECT_FALSE(needs_them(schedules.front()));
    EXPECT_TRUE(std::ranges::any_of(schedules, needs_them));
  }
}

TEST(WriteKernel, attention_has_candidates_without_matrix_units_behind_those_that_take_them) {
  for (const NamedKernel& kernel : chosen_attention()) {
    const auto schedules = candidates(kernel.spec, families()[0], default_machine(families()[0]));
    const auto needs_them = [&](const Schedule& schedule) {
      return (write_kernel(kernel.spec, schedule, families()[0]).value().features & bit(Feature::matrix_units)) != 0;
    };
    EXPECT_FALSE(std::ranges::all_of(schedules, needs_them)) << kernel.name;
  }
}

TEST(WriteKernel, no_product_and_sum_are_rounded_as_one) {
  const auto text = disassemble(write(pointwise(DType::f32, 4, 4)).value().spirv);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("ContractionOff"));
}

TEST(WriteKernel, the_version_is_one_that_drivers_of_every_age_take) {
  const auto spirv = write(pointwise(DType::f32, 4, 4)).value().spirv;
  EXPECT_EQ(std::vector<uint8_t>(spirv.begin() + 4, spirv.begin() + 8), (std::vector<uint8_t>{0, 2, 1, 0}));
}

TEST(WriteKernel, f64_is_refused_where_the_family_has_none) {
  const KernelSpec spec = conformance::gemm({.m = 8, .n = 8, .k = 8, .dtype = DType::f64});
  EXPECT_TRUE(claims(spec, *find_family("pvc")).ok());
  const Status refused = claims(spec, *find_family("dg2"));
  EXPECT_EQ(refused.code(), StatusCode::unimplemented);
  EXPECT_THAT(refused.message(), HasSubstr("dg2 has no f64"));
}

TEST(WriteKernel, what_has_no_kernel_is_refused_with_the_reason) {
  const auto expect_refused = [](const KernelSpec& spec, const char* why) {
    EXPECT_EQ(claims(spec, families()[0]).code(), StatusCode::unimplemented);
    EXPECT_THAT(claims(spec, families()[0]).message(), HasSubstr(why));
  };
  expect_refused({.kernel = SortSpec{}}, "sort");
  expect_refused(conformance::AttentionBuilder({.head_dim = 257}).forward(), "a depth of 257");
  expect_refused(conformance::AttentionBuilder({.head_dim = 16, .value_dim = 300}).backward(), "a depth of 300");
  conformance::AttentionBuilder sharing({.heads = 1 << 12, .q_len = 1 << 17});
  expect_refused(sharing.forward(), "an extent of");
}

TEST(WriteKernel, attention_uses_local_memory_and_shuffles_of_the_sub_group) {
  for (const NamedKernel& kernel : chosen_attention()) {
    const auto text = disassemble(write(kernel.spec).value().spirv);
    ASSERT_TRUE(text.ok());
    EXPECT_THAT(*text, HasSubstr("OpSubgroupShuffle"));
    EXPECT_THAT(*text, HasSubstr("OpControlBarrier"));
    EXPECT_THAT(*text, Not(HasSubstr("Atomic"))) << "sums between groups would come in any order";
  }
}

TEST(WriteKernel, a_schedule_of_another_kernel_is_refused) {
  const KernelSpec product = conformance::gemm({.m = 8, .n = 8, .k = 8});
  const Schedule other = candidates(pointwise(DType::f32, 4, 4), families()[0], default_machine(families()[0])).front();
  EXPECT_EQ(write_kernel(product, other, families()[0]).status().code(), StatusCode::invalid_argument);
}

TEST(WriteKernel, schedules_of_no_list_are_taken_where_they_fit) {
  const DeviceFamily& family = families()[0];
  const KernelSpec product = conformance::gemm({.m = 50, .n = 70, .k = 33});
  const KernelSpec rows = conformance::row_softmax(DType::f32, 4, 100);
  const auto first = [&](const KernelSpec& spec) { return candidates(spec, family, default_machine(family)).front(); };
  EXPECT_TRUE(write_kernel(product, with_fields(first(product), {3, 5, 2}), family).ok());
  EXPECT_TRUE(write_kernel(rows, with_fields(first(rows), {1, 128, 0, 0, 0}), family).ok());

  const auto expect_refused = [&](const KernelSpec& spec, const Schedule& schedule, const char* why) {
    const Status status = write_kernel(spec, schedule, family).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << why;
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  expect_refused(product, with_fields(first(product), {0, 5, 2}), "a zero extent");
  expect_refused(product, with_fields(first(product), {17, 1, 1}), "the work-group is too large");
  expect_refused(product, with_fields(first(product), {1, 13, 5}), "too many sums");
  const KernelSpec halves = conformance::gemm({.m = 500, .n = 700, .k = 330, .dtype = DType::f16});
  EXPECT_TRUE(write_kernel(halves, with_fields(first(halves), {3, 5, 2, 3, 1}), family).ok());
  expect_refused(halves, with_fields(first(halves), {3, 5, 0, 3, 1}), "a zero extent");
  expect_refused(halves, with_fields(first(halves), {3, 11, 1, 1, 1}), "the work-group is too large");
  expect_refused(halves, with_fields(first(halves), {1, 1, 3, 3, 1}), "too many sums");
  expect_refused(halves, with_fields(first(halves), {4, 8, 4, 2, 16}), "more local memory than a group has");
  expect_refused(product, first(halves), "no matrix units for such a product");
  expect_refused(rows, with_fields(first(rows), {1, 96, 0, 0, 0}), "no such group");
  expect_refused(rows, with_fields(first(rows), {2, 128, 0, 0, 0}), "a truth value above 1");
  const KernelSpec attention = conformance::AttentionBuilder({.q_len = 50, .k_len = 70, .head_dim = 64}).forward();
  EXPECT_TRUE(write_kernel(attention, with_fields(first(attention), {3, 5, 2, 16, 0}), family).ok());
  expect_refused(attention, with_fields(first(attention), {3, 5, 2, 8, 0}), "a sub-group has other lanes");
  expect_refused(attention, with_fields(first(attention), {3, 0, 2, 16, 0}), "a zero extent");
  expect_refused(attention, with_fields(first(attention), {17, 1, 1, 16, 0}), "the work-group is too large");
  expect_refused(attention, with_fields(first(attention), {1, 30, 2, 16, 0}), "too many sums");
  expect_refused(attention, with_fields(first(attention), {1, 1, 60, 16, 0}), "more local memory than a group has");
  expect_refused(attention, with_fields(first(attention), {8, 8, 2, 16, 1}), "no matrix units for such a dtype");
  conformance::AttentionBuilder of_halves({.q_len = 50, .k_len = 70, .head_dim = 64, .dtype = DType::f16});
  const KernelSpec forward = of_halves.forward(), backward = of_halves.backward();
  EXPECT_TRUE(write_kernel(forward, with_fields(first(forward), {2, 16, 1, 16, 1}), family).ok());
  expect_refused(forward, with_fields(first(forward), {8, 8, 2, 8, 1}), "matrix units work for other lanes");
  expect_refused(forward, with_fields(first(forward), {8, 4, 2, 16, 1}), "rows are not those of matrix units");
  EXPECT_TRUE(write_kernel(backward, with_fields(first(backward), {4, 8, 1, 16, 1}), family).ok());
  expect_refused(backward, with_fields(first(backward), {4, 12, 2, 16, 1}), "rows are not those of matrix units");
  const KernelSpec points = pointwise(DType::f32, 4, 4);
  expect_refused(points, with_fields(first(points), {1, 128, 0, 0, 0}), "items cannot share a point");
}

TEST(WriteKernel, bytes_of_schedules_are_trusted_with_nothing) {
  const DeviceFamily& family = families()[0];
  for (const NamedKernel& kernel : chosen_kernels()) {
    for (const Schedule& schedule : candidates(kernel.spec, family, default_machine(family))) {
      const auto expect_refused = [&](std::vector<uint8_t> bytes) {
        const Status status = write_kernel(kernel.spec, {std::move(bytes), "damaged"}, family).status();
        EXPECT_EQ(status.code(), StatusCode::invalid_argument) << kernel.name;
      };
      for (size_t size = 0; size < schedule.bytes.size(); ++size) {
        expect_refused({schedule.bytes.begin(), schedule.bytes.begin() + static_cast<ptrdiff_t>(size)});
      }
      std::vector<uint8_t> newer = schedule.bytes;
      ++newer[sizeof(uint32_t) + open_schedule(newer)->implementation.size()];
      expect_refused(newer);
    }
  }
}

TEST(SpirvForm, what_is_no_module_is_data_loss) {
  const std::vector<uint8_t> spirv = write(conformance::row_softmax(DType::f32, 4, 100)).value().spirv;
  EXPECT_TRUE(check_spirv_form(spirv).ok());
  EXPECT_EQ(check_spirv_form({}).code(), StatusCode::data_loss);
  const std::vector<uint8_t> garbage(1000, 0x5A);
  EXPECT_EQ(check_spirv_form(garbage).code(), StatusCode::data_loss);
  std::vector<uint8_t> newer = spirv;
  newer[5] = 6;  // version 1.6
  EXPECT_EQ(check_spirv_form(newer).code(), StatusCode::data_loss);
}

TEST(SpirvForm, a_truncated_module_fails_the_form_or_the_validator) {
  const std::vector<uint8_t> spirv = write(pointwise(DType::f32, 4, 100)).value().spirv;
  for (size_t bytes = 0; bytes < spirv.size(); ++bytes) {
    const std::span part(spirv.data(), bytes);
    const bool is_accepted = check_spirv_form(part).ok() && validate_spirv(part).ok();
    ASSERT_FALSE(is_accepted) << bytes << " of " << spirv.size() << " bytes";
  }
}

}  // namespace
}  // namespace kiln::level_zero
