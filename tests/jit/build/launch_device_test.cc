#include "jit/build/program_verdict/launch_device.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

/// Keeps the extents of the last launch.
class RecordingRunner final : public CandidateRunner {
 public:
  Expected<std::vector<std::span<uint8_t>>> prepare(std::span<const CandidateBuffer> buffers) override {
    m_memory.assign(buffers.size(), std::vector<uint8_t>(64));
    return std::vector<std::span<uint8_t>>(m_memory.begin(), m_memory.end());
  }
  Expected<CandidateRun> run(const Image&, uint32_t, uint32_t, uint32_t, std::span<const int64_t>) override {
    return error(StatusCode::unimplemented, "programs are launched");
  }
  Expected<CandidateRun> launch(const Image&, std::span<const LaunchArgument>, std::span<const int64_t> extents,
                                uint32_t, uint32_t) override {
    launched.assign(extents.begin(), extents.end());
    return CandidateRun{};
  }

  std::vector<int64_t> launched;

 private:
  std::vector<std::vector<uint8_t>> m_memory;
};

class NoObserver final : public LaunchObserver {
 public:
  Expected<std::vector<Given>> begin(const Launch& launch) override {
    return std::vector<Given>(launch.arguments.size(), {.bytes = 4});
  }
  bool stands_in() const override { return false; }
  uint32_t timeout_ms() const override { return 1'000; }
  uint32_t task_step() const override { return 1; }
  Status end(LaunchStatus) override { return {}; }
};

TEST(LaunchDevice, extents_of_a_launch_reach_the_runner) {
  RecordingRunner runner;
  NoObserver observer;
  LaunchDevice device(runner, observer);
  void* const buffers[] = {device.allocate(64).value()};
  ASSERT_TRUE(device.commit().ok());
  const auto queue = device.create_queue().value();
  const auto kernel = device.kernel({}, 1);
  ASSERT_TRUE(kernel->device()->launch(*queue, buffers, nullptr, nullptr, std::vector<int64_t>{3, 50'257}).ok());
  EXPECT_EQ(runner.launched, (std::vector<int64_t>{3, 50'257}));
}

}  // namespace
}  // namespace kiln
