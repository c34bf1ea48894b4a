// What becomes of a plan in an image where it is loaded and launched: with a driver and a cuDNN in host memory that record it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cuda/cudnn/library.h"
#include "backends/cuda/cudnn/plan.h"
#include "backends/cuda/launch_record.h"
#include "tests/backends/cuda/fake_library_test.h"
#include "tests/backends/cuda/fake_plan_launch.h"

namespace kiln::cuda {
namespace {

using testing::HasSubstr;

constexpr const char* k_text = R"({"deviceVer":900,"driverVer":13000})";
constexpr const char* k_older_drivers = R"({"deviceVer":900,"driverVer":12080})";
constexpr const char* k_other_devices = R"({"deviceVer":800,"driverVer":13000})";

const Image k_image{.workspace_bytes = 1024};

class LoadedPlans : public FakeLibraryTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(open(Cudnn::of_process(), "libcudnn_graph.so.9"));
    plan_launch() = {};
  }
  void TearDown() override { expect_none_left({"fake_handles", "fake_descriptors"}); }

  FakePlanLaunch& plan_launch() { return in_library<FakePlanLaunch>("fake_plan_launch"); }

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

  void run(const Executable& executable, void* buffer) { FakeLibraryTest::run(executable, &buffer, m_memory); }

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
