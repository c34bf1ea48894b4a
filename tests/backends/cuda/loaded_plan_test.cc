// What becomes of a plan in an image where it is loaded and launched: with a driver and a cuDNN in host memory that record it.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cuda/cudnn/library.h"
#include "backends/cuda/cudnn/plan.h"
#include "backends/cuda/launch_record.h"
#include "backends/cuda/runtime/runtime.h"
#include "tests/backends/cuda/fake_launch.h"
#include "tests/backends/cuda/fake_plan_launch.h"

namespace kiln::cuda {
namespace {

using testing::HasSubstr;

constexpr const char* k_text = R"({"deviceVer":900,"driverVer":13000})";
constexpr const char* k_older_drivers = R"({"deviceVer":900,"driverVer":12080})";
constexpr const char* k_other_devices = R"({"deviceVer":800,"driverVer":13000})";

const Image k_image{.workspace_bytes = 1024};

class LoadedPlans : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = std::string(KILN_FAKES) + "/good";
    auto device = open_cuda_device({{{folder, "test"}}}, 0);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    m_device = std::move(*device);
    m_driver = dlopen((folder + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_NOLOAD);
    const auto& cudnn = Cudnn::of_process();
    ASSERT_TRUE(cudnn.ok()) << cudnn.status().to_string();
    ASSERT_EQ(cudnn->library().path(), folder + "/libcudnn_graph.so.9");
    m_cudnn = dlopen(cudnn->library().path().c_str(), RTLD_NOW | RTLD_NOLOAD);
    plan_launch() = {};
    launch() = {};
  }
  void TearDown() override {
    if (m_cudnn == nullptr) return;
    for (const char* counter : {"fake_handles", "fake_descriptors"})
      EXPECT_EQ(*static_cast<int*>(dlsym(m_cudnn, counter)), 0) << counter;
  }

  FakePlanLaunch& plan_launch() { return *static_cast<FakePlanLaunch*>(dlsym(m_cudnn, "fake_plan_launch")); }
  FakeLaunch& launch() { return *static_cast<FakeLaunch*>(dlsym(m_driver, "fake_launch")); }

  /// A plan of a buffer, the workspace and a number, and a kernel.
  static std::vector<uint8_t> code(const std::string& text, uint64_t version = 91900) {
    LaunchRecord record{.buffers = 1, .least_driver = 13000};
    record.kernels = {{.entry = "any", .blocks = 7, .threads = 256}};
    record.plans = {{.version = version, .workspace_bytes = 1024}};
    record.plans[0].tensors = {{.number = 11, .offset_bytes = 16},
                               {.number = 12, .place = PlanTensor::Place::workspace, .offset_bytes = 512},
                               {.number = 13, .place = PlanTensor::Place::number, .value = 0.125F}};
    return pack(record, {{0x7f, 'E', 'L', 'F'}}, {text});
  }

  void run(const Executable& executable, void* buffer) {
    const auto queue = m_device->adopt_queue(&m_stream);
    ASSERT_TRUE(queue.ok());
    void* const buffers[] = {buffer};
    const Status launched = executable.device()->launch(**queue, buffers, m_memory, nullptr, {});
    ASSERT_TRUE(launched.ok()) << launched.to_string();
  }

  std::unique_ptr<Device> m_device;
  void *m_driver = nullptr, *m_cudnn = nullptr;
  int m_stream = 0;
  alignas(64) uint8_t m_memory[2048] = {};
};

TEST_F(LoadedPlans, are_launched_on_the_callers_stream_with_every_tensors_address) {
  const auto executable = m_device->load_whole(k_image, code(k_text));
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  EXPECT_EQ((*executable)->workspace_bytes(), 1024u);
  uint8_t* const buffer = m_memory + 1024;
  run(**executable, buffer);
  const FakePlanLaunch& seen = plan_launch();
  EXPECT_EQ(seen.launches, 1u);
  EXPECT_EQ(launch().blocks, 0u);
  EXPECT_EQ(seen.stream, &m_stream);
  EXPECT_THAT(std::vector(seen.numbers, seen.numbers + 4), testing::ElementsAre(11, 12, 13, 0));
  EXPECT_EQ(seen.pointers[0], buffer + 16);
  EXPECT_EQ(seen.pointers[1], m_memory + 512);
  EXPECT_EQ(seen.workspace, m_memory);
  EXPECT_EQ(seen.value, 0.125F);
}

TEST_F(LoadedPlans, an_address_they_do_not_take_goes_to_the_kernel) {
  const auto executable = m_device->load(k_image, code(k_text));
  ASSERT_TRUE(executable.ok());
  run(**executable, m_memory + 1024 + 2);
  EXPECT_EQ(plan_launch().launches, 0u);
  EXPECT_EQ(launch().blocks, 7u);
}

TEST_F(LoadedPlans, of_an_older_driver_are_taken) {
  const auto executable = m_device->load_whole(k_image, code(k_older_drivers));
  EXPECT_TRUE(executable.ok()) << executable.status().to_string();
}

TEST_F(LoadedPlans, of_another_device_leave_the_kernel_and_are_no_verdicts) {
  const auto executable = m_device->load(k_image, code(k_other_devices));
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  run(**executable, m_memory + 1024);
  EXPECT_EQ(plan_launch().launches, 0u);
  EXPECT_EQ(launch().blocks, 7u);
  const auto judged = m_device->load_whole(k_image, code(k_other_devices));
  EXPECT_EQ(judged.status().code(), StatusCode::failed_precondition);
  EXPECT_THAT(judged.status().message(), HasSubstr("ARCH_MISMATCH"));
}

TEST_F(LoadedPlans, of_another_library_are_named_with_both_versions) {
  EXPECT_TRUE(m_device->load(k_image, code(k_text, 92400)).ok());
  const auto judged = m_device->load_whole(k_image, code(k_text, 92400));
  EXPECT_EQ(judged.status().code(), StatusCode::failed_precondition);
  EXPECT_THAT(judged.status().message(), HasSubstr("9.24.0"));
  EXPECT_THAT(judged.status().message(), HasSubstr("9.19.0"));
}

TEST(CudnnLibrary, without_cublas_is_refused_since_it_would_end_the_process) {
  const auto cudnn = Cudnn::open({{{std::string(KILN_FAKES) + "/alone", "test"}}});
  if (cudnn.ok()) GTEST_SKIP() << "the loader finds a cuBLASLt of its own";
  EXPECT_EQ(cudnn.status().code(), StatusCode::failed_precondition);
  EXPECT_THAT(cudnn.status().message(), HasSubstr("libcublasLt.so.13"));
}

TEST(PlanText, gets_another_drivers_version_where_it_names_one) {
  EXPECT_EQ(with_driver(k_older_drivers, 13000), k_text);
  EXPECT_EQ(with_driver(R"({"driverVer": 7})", 12), R"({"driverVer": 12})");
  EXPECT_EQ(with_driver("{}", 12), "");
  EXPECT_EQ(with_driver("\"driverVer\":", 12), "");
}

}  // namespace
}  // namespace kiln::cuda
