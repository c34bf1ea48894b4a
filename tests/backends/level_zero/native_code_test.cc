#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backends/device_code.h"
#include "backends/level_zero/compile/backend.h"
#include "backends/level_zero/runtime/runtime.h"
#include "backends/level_zero/target.h"
#include "tests/backends/level_zero/kernels.h"

// Which form of an artifact a device takes. Runs with the stand-in's device; skips where it cannot run.
namespace kiln::level_zero {
namespace {

using testing::HasSubstr;

constexpr int64_t k_elements = 1000;

class NativeCode : public testing::Test {
 protected:
  void SetUp() override {
    const Discovery& discovery = m_runtime.discover();
    if (!discovery.status.ok()) GTEST_SKIP() << discovery.status.to_string();
    m_target = discovery.devices[0].targets[0];
    m_device = m_runtime.open(0).value();
  }

  Image compile(const Target& target) {
    const KernelSpec spec = pointwise(DType::f32, 1, k_elements);
    auto image = m_compile.compile(spec, default_candidates(m_compile, spec, target).front(), target);
    EXPECT_TRUE(image.ok()) << image.status().to_string();
    return std::move(image).value();
  }

  Status load(const Image& image) { return m_device->load(image, image.code).status(); }

  static Image with(const Image& image, std::string driver, std::vector<uint8_t> native,
                    std::vector<uint8_t> portable) {
    const DeviceCodeView view = unpack_device_code(image.code).value();
    Image changed = image;
    changed.code = pack_device_code(
        {std::move(driver), std::move(native), std::move(portable), {view.launch.begin(), view.launch.end()}});
    return changed;
  }
  static std::vector<uint8_t> portable_of(const Image& image) {
    const auto portable = unpack_device_code(image.code).value().portable;
    return {portable.begin(), portable.end()};
  }
  static std::vector<uint8_t> native_of(const Image& image) {
    const auto native = unpack_device_code(image.code).value().native;
    return {native.begin(), native.end()};
  }

  LevelZeroCompileBackend m_compile;
  LevelZeroRuntimeBackend m_runtime;
  Target m_target;
  std::unique_ptr<Device> m_device;
};

void expect_right_results(Device& device, const Executable& executable) {
  std::vector<float> in(k_elements), out(k_elements, -1);
  for (int64_t i = 0; i < k_elements; ++i) in[static_cast<size_t>(i)] = 0.01F * static_cast<float>(i - 500);
  const auto queue = device.create_queue().value();
  const uint32_t ok = 0;
  void* memory[] = {device.allocate(in.size() * 4).value(), device.allocate(out.size() * 4).value()};
  void* status = device.allocate(4).value();
  ASSERT_TRUE(queue->upload(memory[0], in.data(), in.size() * 4).ok());
  ASSERT_TRUE(queue->upload(status, &ok, 4).ok());
  ASSERT_TRUE(executable.device()->launch(*queue, memory, nullptr, status, {}).ok());
  ASSERT_TRUE(queue->download(out.data(), memory[1], out.size() * 4).ok());
  ASSERT_TRUE(queue->synchronise().ok());
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_NEAR(out[i], in[i] / (1 + std::exp(-in[i])), 1e-5F * std::max(1.0F, std::fabs(in[i]))) << i;
  }
  for (void* block : {memory[0], memory[1], status}) device.release(block);
}

TEST_F(NativeCode, it_lies_beside_the_portable_form_and_names_its_driver) {
  const Image image = compile(m_target);
  const DeviceCodeView view = unpack_device_code(image.code).value();
  EXPECT_FALSE(view.native.empty());
  EXPECT_FALSE(view.portable.empty());
  EXPECT_EQ(view.driver, m_target.driver);
  const auto executable = m_device->load(image, image.code);
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  expect_right_results(*m_device, **executable);
}

TEST_F(NativeCode, code_made_without_a_driver_runs_from_its_portable_form) {
  Target absent = m_target;
  absent.driver.clear();
  const Image image = compile(absent);
  EXPECT_TRUE(native_of(image).empty());
  const auto executable = m_device->load(image, image.code);
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  expect_right_results(*m_device, **executable);
}

TEST_F(NativeCode, extents_are_arguments_behind_the_status) {
  const Image image = compile(m_target);
  const auto executable = m_device->load(image, image.code);
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  const auto queue = m_device->create_queue().value();
  void* const memory = m_device->allocate(k_elements * 4).value();
  void* const buffers[] = {memory, memory};
  const Status refused = (*executable)->device()->launch(*queue, buffers, nullptr, memory, std::vector<int64_t>{3});
  EXPECT_THAT(refused.message(), HasSubstr("zeKernelSetArgumentValue")) << "this kernel has no argument for it";
  m_device->release(memory);
}

TEST_F(NativeCode, finishing_adds_what_compiling_on_the_device_gives) {
  Target absent = m_target;
  absent.driver.clear();
  const auto finished = m_compile.finish(compile(absent), m_target);
  ASSERT_TRUE(finished.ok()) << finished.status().to_string();
  EXPECT_FALSE(native_of(*finished).empty());
  EXPECT_TRUE(load(*finished).ok());
}

TEST_F(NativeCode, code_for_what_the_device_lacks_is_not_finished) {
  constexpr uint64_t k_no_feature = uint64_t{1} << 63;
  Image image = compile(m_target);
  image.features |= k_no_feature;
  EXPECT_EQ(m_compile.finish(image, m_target).status().code(), StatusCode::unimplemented);
}

TEST_F(NativeCode, a_product_by_matrix_units_says_that_it_needs_them) {
  const KernelSpec spec = conformance::gemm({.m = 64, .n = 64, .k = 64, .dtype = DType::f16});
  const auto image = m_compile.compile(spec, default_candidates(m_compile, spec, m_target).front(), m_target);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_EQ(image->features & ~compile(m_target).features, bit(Feature::matrix_units));
  EXPECT_TRUE(load(*image).ok());
}

TEST_F(NativeCode, that_of_another_driver_is_rebuilt_from_the_portable_form) {
  const Image image = compile(m_target);
  const Image foreign = with(image, "another driver", {1, 2, 3}, portable_of(image));
  const auto executable = m_device->load(foreign, foreign.code);
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  expect_right_results(*m_device, **executable);
}

TEST_F(NativeCode, that_of_another_driver_alone_is_refused_with_both_names) {
  const Image image = compile(m_target);
  const Status refused = load(with(image, "another driver", native_of(image), {}));
  EXPECT_EQ(refused.code(), StatusCode::failed_precondition);
  EXPECT_THAT(refused.message(), HasSubstr("another driver"));
  EXPECT_THAT(refused.message(), HasSubstr(m_target.driver));
}

TEST_F(NativeCode, damage_falls_back_or_is_refused_by_the_driver) {
  const Image image = compile(m_target);
  EXPECT_TRUE(load(with(image, m_target.driver, {1, 2, 3}, portable_of(image))).ok());
  EXPECT_EQ(load(with(image, m_target.driver, {1, 2, 3}, {})).code(), StatusCode::failed_precondition);
}

TEST_F(NativeCode, a_portable_form_that_is_none_never_reaches_the_driver) {
  const Image image = compile(m_target);
  const std::vector<uint8_t> portable = portable_of(image);
  EXPECT_EQ(load(with(image, "", {}, std::vector<uint8_t>(400, 0x5A))).code(), StatusCode::data_loss);
  const std::vector<uint8_t> half(portable.begin(), portable.begin() + static_cast<long>(portable.size() / 2));
  EXPECT_EQ(load(with(image, "", {}, half)).code(), StatusCode::data_loss);
  EXPECT_FALSE(load(with(image, "", {}, {})).ok());
}

TEST_F(NativeCode, a_launch_form_that_is_none_is_refused) {
  Image image = compile(m_target);
  const DeviceCodeView view = unpack_device_code(image.code).value();
  for (const std::vector<uint8_t>& launch : {std::vector<uint8_t>{}, encode(LaunchForm{0, 16, 2}),
                                             encode(LaunchForm{1, 4096, 2}), encode(LaunchForm{1, 16, 4000})}) {
    Image changed = image;
    changed.code = pack_device_code({"", {}, {view.portable.begin(), view.portable.end()}, launch});
    EXPECT_EQ(load(changed).code(), StatusCode::invalid_argument);
  }
}

TEST_F(NativeCode, a_queue_may_go_with_work_on_it) {
  const std::vector<uint8_t> sent{1, 2, 3, 4};
  std::vector<uint8_t> got(4);
  void* memory = m_device->allocate(8).value();
  const auto queue = m_device->create_queue().value();
  {
    const auto other = m_device->create_queue().value();
    ASSERT_TRUE(other->upload(memory, sent.data(), 4).ok());
    ASSERT_TRUE(other->copy(static_cast<uint8_t*>(memory) + 4, memory, 4).ok());
  }
  ASSERT_TRUE(queue->download(got.data(), static_cast<uint8_t*>(memory) + 4, 4).ok());
  ASSERT_TRUE(queue->synchronise().ok());
  EXPECT_EQ(got, sent);
  m_device->release(memory);
}

TEST_F(NativeCode, a_target_of_another_driver_cannot_be_compiled_for_here) {
  Target other = m_target;
  other.driver = "another driver";
  const KernelSpec spec = pointwise(DType::f32, 1, k_elements);
  const auto image = m_compile.compile(spec, default_candidates(m_compile, spec, other).front(), other);
  EXPECT_EQ(image.status().code(), StatusCode::unavailable);
}

}  // namespace
}  // namespace kiln::level_zero
