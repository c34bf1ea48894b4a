#include "autotune/measure.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "autotune/race.h"
#include "jit/worker/process_runner.h"
#include "tests/autotune/neighbour.h"

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

/// Reads eight bytes, zeros, of each line of buffer 1's first 128 KiB, in an order that no prefetcher follows; each address
/// depends on what was read before.
Image walking() {
  return {{0x48, 0x8b, 0x47, 0x08,              // mov rax, [rdi + 8]
           0x31, 0xd2,                          // xor edx, edx
           0x31, 0xc9,                          // xor ecx, ecx
           0x69, 0xc9, 0xcd, 0x04, 0x00, 0x00,  // next: imul ecx, ecx, 1229
           0xff, 0xc1,                          // inc ecx
           0x81, 0xe1, 0xff, 0x07, 0x00, 0x00,  // and ecx, 2047
           0x89, 0xce,                          // mov esi, ecx
           0xc1, 0xe6, 0x06,                    // shl esi, 6
           0x48, 0x01, 0xd6,                    // add rsi, rdx
           0x48, 0x8b, 0x14, 0x30,              // mov rdx, [rax + rsi]
           0x85, 0xc9,                          // test ecx, ecx
           0x75, 0xe2,                          // jnz next
           0xc3},
          0,
          1,
          0,
          0};
}

/// This thread, and what it starts, on one processor.
class OnOneProcessor {
 public:
  OnOneProcessor() {
    sched_getaffinity(0, sizeof m_before, &m_before);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OnOneProcessor() { sched_setaffinity(0, sizeof m_before, &m_before); }

 private:
  cpu_set_t m_before;
};

/// Says of each repetition what it is told to say.
class ToldTimes final : public CandidateRunner {
 public:
  CandidateTimes times;
  std::function<void()> meanwhile = [] {};

  Expected<std::vector<std::span<uint8_t>>> prepare(std::span<const CandidateBuffer> /*buffers*/) override {
    return error(StatusCode::unimplemented, "nothing runs");
  }
  Expected<CandidateRun> run(const Image& /*image*/, uint32_t /*timeout_ms*/, uint32_t /*repetitions*/,
                             uint32_t /*task_step*/, std::span<const int64_t> /*extents*/) override {
    return error(StatusCode::unimplemented, "nothing runs");
  }
  Expected<CandidateTimes> time(const Image& /*image*/, uint32_t /*timeout_ms*/, uint32_t /*repetitions*/,
                                uint64_t /*swept_bytes*/, bool /*is_fresh*/) override {
    meanwhile();
    return times;
  }
};

class StopwatchTest : public ::testing::Test {
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
  Stopwatch stopwatch(*m_runner, {.swept_bytes = 1 << 20});
  const auto quick = stopwatch.sample(spinning(100'000), 1e-4), slow = stopwatch.sample(spinning(1'000'000), 1e-3);
  ASSERT_TRUE(quick.ok()) << quick.status().to_string();
  ASSERT_TRUE(slow.ok()) << slow.status().to_string();
  EXPECT_GT(quick->seconds, 0);
  EXPECT_GT(slow->seconds, 3 * quick->seconds);
}

TEST_F(StopwatchTest, the_prepared_buffers_stay_as_they_are) {
  const float before = 3;
  std::memcpy(m_buffers[1].data(), &before, sizeof before);
  Stopwatch stopwatch(*m_runner, {});
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
  Stopwatch stopwatch(*m_runner, {.swept_bytes = 1 << 16});
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
  Stopwatch stopwatch(*m_runner, {});
  const auto crashed = stopwatch.sample({{0x0f, 0x0b}, 0, 1, 0, 0}, 0);  // ud2
  EXPECT_EQ(crashed.status().code(), StatusCode::aborted);
  EXPECT_TRUE(stopwatch.sample(spinning(10), 0).ok());
}

TEST_F(StopwatchTest, a_candidate_that_hangs_drops_out_and_the_others_race_on) {
  Stopwatch stopwatch(*m_runner, {.timeout_ms = 100});
  const Image images[] = {spinning(1'000'000), {{0xeb, 0xfe}, 0, 1, 0, 0}, spinning(100'000)};  // jmp to itself
  std::vector<Entrant> entrants(3);
  const auto winner =
      race(entrants,
           [&](size_t index, double expected_seconds) { return stopwatch.sample(images[index], expected_seconds); },
           {.turns = 1, .winning_lead = 3});
  ASSERT_TRUE(winner.ok()) << winner.status().to_string();
  EXPECT_EQ(*winner, 2);
  EXPECT_EQ(entrants[1].status.code(), StatusCode::deadline_exceeded);
  EXPECT_EQ(entrants[1].why_dropped(), "candidate did not end within 100 ms");
}

TEST(Stopwatch, what_other_kernels_drove_out_of_the_caches_is_fetched_again) {
  const OnOneProcessor here;
  const auto runner = std::move(ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH, .target = {}})).value();
  const auto buffers = runner->prepare(std::vector<CandidateBuffer>{{64, {}, 0}, {128 << 10, {}, 0}}).value();
  for (const auto& buffer : buffers) std::ranges::fill(buffer, uint8_t{0});
  Stopwatch warm(*runner, {}), swept(*runner, {.swept_bytes = 8 << 20});
  double least_warm = HUGE_VAL, least_swept = HUGE_VAL;
  for (int i = 0; i < 5; ++i) {  // nothing but the caches makes the least one slower
    least_warm = std::min(least_warm, warm.sample(walking(), 2e-4).value().seconds);
    least_swept = std::min(least_swept, swept.sample(walking(), 2e-4).value().seconds);
  }
  EXPECT_GT(least_swept, 1.5 * least_warm);
}

TEST(Stopwatch, a_candidate_that_loses_its_processor_was_disturbed) {
  const OnOneProcessor here;
  const auto runner = std::move(ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH, .target = {}})).value();
  ASSERT_TRUE(runner->prepare(std::vector<CandidateBuffer>{{64, {}, 0}, {64, {}, 0}}).ok());
  Stopwatch stopwatch(*runner, {});
  const auto disturbed_of = [&](uint32_t rounds) {
    int disturbed = 0;
    for (int i = 0; i < 2; ++i) disturbed += stopwatch.sample(spinning(rounds), 0).value().was_disturbed;
    return disturbed;
  };
  std::vector<std::unique_ptr<testing::Neighbour>> neighbours;
  for (const size_t many : {1, 8}) {  // a sample of 50 ms, in turns of a few milliseconds
    while (neighbours.size() < many) neighbours.push_back(std::make_unique<testing::Neighbour>());
    EXPECT_EQ(disturbed_of(150'000'000), 2) << many;
  }
  EXPECT_LE(disturbed_of(10), 1) << "it ends within a turn";
}

TEST(Stopwatch, most_repetitions_decide_whether_a_sample_was_disturbed) {
  ToldTimes runner;
  Stopwatch stopwatch(runner, {});
  runner.times = {{0.03, 0.01, 0.02}, {true, false, false}, 2};
  const auto once = stopwatch.sample(spinning(1), 0);
  EXPECT_FALSE(once->was_disturbed);
  EXPECT_EQ(once->seconds, 0.02);
  EXPECT_EQ(once->threads, 2);
  runner.times.was_disturbed[2] = true;
  EXPECT_TRUE(stopwatch.sample(spinning(1), 0)->was_disturbed);
}

TEST(Stopwatch, a_sample_that_the_host_took_the_processor_from_was_disturbed) {
  const std::string path = ::testing::TempDir() + "processor_times";
  const auto say = [&](int stolen) {
    std::ofstream(path) << "cpu" << sched_getcpu() << " 100 0 0 100 0 0 0 " << stolen << " 0 0\n";
  };
  const OnOneProcessor here;  // of which the file speaks
  ToldTimes runner;
  runner.times = {{0.01}, {false}, 1};
  Stopwatch stopwatch(runner, {.processor_times = path});
  for (const int ticks : {0, 1, 3}) {
    say(50);
    runner.meanwhile = [&] { say(50 + ticks); };
    EXPECT_EQ(stopwatch.sample(spinning(1), 0)->was_disturbed, ticks == 3) << ticks;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kiln
