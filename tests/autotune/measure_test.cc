#include "autotune/measure.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "jit/worker/process_runner.h"

namespace kiln {
namespace {

/// entry(buffers, workspace, status, first, last, extents): spins `rounds` times, then doubles buffer 1's first float into
/// buffer 0's.
Image spinning(uint32_t rounds) {
  std::vector<uint8_t> code = {0xb8};  // mov eax, rounds
  for (int i = 0; i < 4; ++i) code.push_back(static_cast<uint8_t>(rounds >> (8 * i)));
  const std::vector<uint8_t> rest = {0xff, 0xc8,              // dec eax
                                     0x75, 0xfc,              // jnz
                                     0x48, 0x8b, 0x47, 0x08,  // mov rax, [rdi + 8]
                                     0xf3, 0x0f, 0x10, 0x00,  // movss xmm0, [rax]
                                     0xf3, 0x0f, 0x58, 0xc0,  // addss xmm0, xmm0
                                     0x48, 0x8b, 0x07,        // mov rax, [rdi]
                                     0xf3, 0x0f, 0x11, 0x00,  // movss [rax], xmm0
                                     0xc3};
  code.insert(code.end(), rest.begin(), rest.end());
  return {code, 0, 1, 0, 0};
}

class StopwatchTest : public testing::Test {
 protected:
  void SetUp() override {
    m_runner = std::move(ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH, .target = {}})).value();
    m_buffers = m_runner->prepare(std::vector<CandidateBuffer>{{4096, {}, 0}, {4096, {}, 0}}).value();
    for (const auto& buffer : m_buffers) std::ranges::fill(buffer, uint8_t{0});
  }

  std::unique_ptr<CandidateRunner> m_runner;
  std::vector<std::span<uint8_t>> m_buffers;
};

TEST_F(StopwatchTest, what_takes_longer_is_said_to) {
  Stopwatch stopwatch(*m_runner, 1 << 20);
  const auto quick = stopwatch.sample(spinning(100'000), 1e-4), slow = stopwatch.sample(spinning(1'000'000), 1e-3);
  ASSERT_TRUE(quick.ok()) << quick.status().to_string();
  ASSERT_TRUE(slow.ok()) << slow.status().to_string();
  EXPECT_GT(quick->seconds, 0);
  EXPECT_GT(slow->seconds, 3 * quick->seconds);
}

TEST_F(StopwatchTest, the_prepared_buffers_stay_as_they_are) {
  const float before = 3;
  std::memcpy(m_buffers[1].data(), &before, sizeof before);
  Stopwatch stopwatch(*m_runner, 0);
  ASSERT_TRUE(stopwatch.sample(spinning(10), 0).ok());
  float after = 1;
  std::memcpy(&after, m_buffers[0].data(), sizeof after);
  EXPECT_EQ(after, 0);  // the copy was written to
  ASSERT_TRUE(m_runner->run(spinning(10), 1'000, 1).ok());
  std::memcpy(&after, m_buffers[0].data(), sizeof after);
  EXPECT_EQ(after, 6);
}

TEST_F(StopwatchTest, launches_that_run_one_after_another_are_timed_together) {
  const SampleSource source{SamplePool::of(DType::f32).value(), 64};
  m_buffers = m_runner->prepare(std::vector<CandidateBuffer>{{4096, {}, 0}, {4096, {}, 0}, {4096, source, 0}}).value();
  float first = 0, last = 0;
  std::memcpy(&first, m_buffers[2].data(), sizeof first);
  const Image image = spinning(100'000), slow = spinning(1'000'000), bad{{0x0f, 0x0b}, 0, 1, 0, 0};  // ud2
  const std::vector<LaunchArgument> doubled{{0, 64, 4}, {2, 0, 4}}, again{{1, 0, 4}, {0, 64, 4}};
  const std::vector<TimedLaunch> one{{&image, doubled}}, both{{&image, doubled}, {&slow, again}};
  Stopwatch stopwatch(*m_runner, 1 << 16);
  const auto single = stopwatch.sample(one, 1e-4), pair = stopwatch.sample(both, 1e-3);
  ASSERT_TRUE(single.ok()) << single.status().to_string();
  ASSERT_TRUE(pair.ok()) << pair.status().to_string();
  EXPECT_GT(pair->seconds, 3 * single->seconds);
  std::memcpy(&last, m_buffers[1].data(), sizeof last);
  EXPECT_NE(first, 0);
  EXPECT_EQ(last, 4 * first);

  const auto crashed = stopwatch.sample(std::vector<TimedLaunch>{{&image, doubled}, {&bad, again}}, 0);
  EXPECT_EQ(crashed.status().code(), StatusCode::aborted);
  EXPECT_TRUE(stopwatch.sample(both, 0).ok());
}

TEST_F(StopwatchTest, a_crash_is_an_error_and_the_next_sample_works) {
  Stopwatch stopwatch(*m_runner, 0);
  const auto crashed = stopwatch.sample({{0x0f, 0x0b}, 0, 1, 0, 0}, 0);  // ud2
  EXPECT_EQ(crashed.status().code(), StatusCode::aborted);
  EXPECT_TRUE(stopwatch.sample(spinning(10), 0).ok());
}

}  // namespace
}  // namespace kiln
