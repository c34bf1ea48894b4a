#include "jit/worker/process_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/limits.h"

namespace kiln {
namespace {

/// Candidates written by hand. The convention (backends/cpu/runtime/entry.h): rdi buffers, rsi workspace, rdx
/// status, rcx first task, r8 last task, r9 extents.
Image code(std::vector<uint8_t> bytes, uint64_t workspace_bytes = 0) {
  return {.code = std::move(bytes), .entry = 0, .tasks = 7, .workspace_bytes = workspace_bytes};
}

const std::vector<uint8_t> k_return = {0xc3};

class ProcessRunnerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto runner = ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH});
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    m_runner = std::move(*runner);
    auto buffers = m_runner->prepare(std::vector<CandidateBuffer>{{100, {}}, {4096, {}}});
    ASSERT_TRUE(buffers.ok()) << buffers.status().to_string();
    m_buffers = std::move(*buffers);
  }

  /// The runner is as good as new after whatever the last candidate did.
  void expect_next_run_works() {
    const auto run = m_runner->run(code(k_return), 5'000, 3);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    EXPECT_TRUE(run->red_zones_intact);
    EXPECT_EQ(run->seconds.size(), 3U);
  }

  std::unique_ptr<CandidateRunner> m_runner;
  std::vector<std::span<uint8_t>> m_buffers;
};

TEST_F(ProcessRunnerTest, buffers_come_aligned) {
  for (const auto& buffer : m_buffers) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
  }
}

TEST_F(ProcessRunnerTest, a_candidate_reads_its_input_and_writes_its_output) {
  m_buffers[0][0] = 42, m_buffers[1][2] = 0xff;
  // mov rax,[rdi]; mov r9,[rdi+8]; mov al,[rax]; mov [r9],al; mov [r9+1],r8b; ret
  Image image =
      code({0x48, 0x8b, 0x07, 0x4c, 0x8b, 0x4f, 0x08, 0x8a, 0x00, 0x41, 0x88, 0x01, 0x45, 0x88, 0x41, 0x01, 0xc3});
  image.tasks = 1;
  const auto run = m_runner->run(image, 5'000, 2);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  EXPECT_EQ(m_buffers[1][0], 42);
  EXPECT_EQ(m_buffers[1][1], 1);  // the last task
  EXPECT_EQ(m_buffers[1][2], 0xff);
  EXPECT_TRUE(run->red_zones_intact);
  EXPECT_EQ(run->status, LaunchStatus::ok);
  ASSERT_EQ(run->seconds.size(), 2U);
  EXPECT_LT(run->seconds[0], 1.0);
}

TEST_F(ProcessRunnerTest, a_data_error_is_reported_as_launch_status) {
  // mov dword [rdx],1; ret
  const auto run = m_runner->run(code({0xc7, 0x02, 0x01, 0, 0, 0, 0xc3}), 5'000, 1);
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->status, LaunchStatus::index_out_of_range);
}

TEST_F(ProcessRunnerTest, the_workspace_is_there_and_its_end_is_guarded) {
  // mov byte [rsi+1023],1; ret
  EXPECT_TRUE(m_runner->run(code({0xc6, 0x86, 0xff, 0x03, 0, 0, 0x01, 0xc3}, 1024), 5'000, 1).ok());
  // mov byte [rsi+1024],1; ret
  const auto run = m_runner->run(code({0xc6, 0x86, 0x00, 0x04, 0, 0, 0x01, 0xc3}, 1024), 5'000, 1);
  EXPECT_EQ(run.status().code(), StatusCode::aborted);
  expect_next_run_works();
}

TEST_F(ProcessRunnerTest, a_write_one_byte_outside_breaks_the_red_zone_only_for_its_candidate) {
  struct Case {
    int32_t offset;
    bool outside;
  };
  // Buffer 0 has 100 bytes: 100 is one past the end, inside the alignment's padding.
  for (const Case& each : {Case{-1, true}, Case{0, false}, Case{99, false}, Case{100, true}, Case{128, true},
                           Case{100 + 4096, true}, Case{-4096, true}}) {
    // mov rax,[rdi]; mov byte [rax+offset],1; ret
    std::vector<uint8_t> bytes = {0x48, 0x8b, 0x07, 0xc6, 0x80, 0, 0, 0, 0, 0x01, 0xc3};
    std::memcpy(bytes.data() + 5, &each.offset, 4);
    const auto run = m_runner->run(code(bytes), 5'000, 1);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    EXPECT_EQ(run->red_zones_intact, !each.outside) << each.offset;
    expect_next_run_works();
  }
}

TEST_F(ProcessRunnerTest, a_candidate_that_hangs_is_killed_at_its_deadline) {
  const auto begin = Clock::now();
  const auto run = m_runner->run(code({0xeb, 0xfe}), 100, 1);
  EXPECT_EQ(run.status().code(), StatusCode::deadline_exceeded);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
  expect_next_run_works();
}

/// The process that this one started.
pid_t child() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream status(entry.path() / "status");
    for (std::string word; status >> word;) {
      if (word == "PPid:" && status >> word && word == std::to_string(getpid())) {
        return std::stoi(entry.path().filename());
      }
    }
  }
  return -1;
}

TEST_F(ProcessRunnerTest, a_candidate_that_gets_no_processor_does_not_hang) {
  const pid_t worker = child();
  ASSERT_GT(worker, 0);
  ASSERT_EQ(kill(worker, SIGSTOP), 0);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    kill(worker, SIGCONT);
  });
  const auto run = m_runner->run(code(k_return), 100, 1);
  later.join();
  EXPECT_TRUE(run.ok()) << run.status().to_string();
  expect_next_run_works();
}

TEST_F(ProcessRunnerTest, a_candidate_that_crashes_takes_only_its_process_along) {
  struct Case {
    const char* name;
    int signal;
    std::vector<uint8_t> bytes;
  };
  for (const Case& each : {
           Case{"ud2", SIGILL, {0x0f, 0x0b}},
           Case{"store to null", SIGSEGV, {0x31, 0xc0, 0xc7, 0x00, 1, 0, 0, 0, 0xc3}},
           Case{"smashed return address", SIGSEGV, {0x48, 0xc7, 0x04, 0x24, 0x78, 0x56, 0x34, 0x12, 0xc3}},
           Case{"store to its own code", SIGSEGV, {0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff, 0xc6, 0x00, 0x90, 0xc3}},
           Case{"endless recursion", SIGSEGV, {0xe8, 0xfb, 0xff, 0xff, 0xff}},
       }) {
    const auto run = m_runner->run(code(each.bytes), 5'000, 1);
    EXPECT_EQ(run.status().code(), StatusCode::aborted) << each.name;
    EXPECT_NE(run.status().message().find(fmt::format("signal {} ", each.signal)), std::string::npos)
        << each.name << ": " << run.status().message();
    expect_next_run_works();
  }
}

TEST_F(ProcessRunnerTest, system_calls_are_refused) {
  for (const uint32_t number : {41U /* socket */, 2U /* open */, 57U /* fork */, 59U /* execve */, 62U /* kill */,
                                10U /* mprotect */, 101U /* ptrace */, 0U /* read */}) {
    // mov eax,number; syscall; ret
    std::vector<uint8_t> bytes = {0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3};
    std::memcpy(bytes.data() + 1, &number, 4);
    const auto run = m_runner->run(code(bytes), 5'000, 1);
    EXPECT_EQ(run.status().code(), StatusCode::aborted) << number;
    EXPECT_NE(run.status().message().find(fmt::format("signal {} ", SIGSYS)), std::string::npos)
        << run.status().message();
  }
  // mmap of writable and executable memory: mov eax,9; mov edx,7; xor edi,edi; mov esi,4096; mov r10d,0x22;
  // mov r8,-1; xor r9d,r9d; syscall; ret
  const auto run = m_runner->run(
      code({0xb8, 9,    0, 0, 0, 0xba, 7,    0,    0,    0,    0x31, 0xff, 0xbe, 0,    0x10, 0,    0,    0x41,
            0xba, 0x22, 0, 0, 0, 0x49, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff, 0x45, 0x31, 0xc9, 0x0f, 0x05, 0xc3}),
      5'000, 1);
  EXPECT_NE(run.status().message().find(fmt::format("signal {} ", SIGSYS)), std::string::npos)
      << run.status().message();
  expect_next_run_works();
}

TEST_F(ProcessRunnerTest, larger_buffers_are_prepared_again_and_small_ones_reuse_them) {
  for (const uint64_t size : {uint64_t{64} << 20, uint64_t{10}, uint64_t{0}}) {
    auto buffers = m_runner->prepare(std::vector<CandidateBuffer>{{size, {}}, {size, {}}});
    ASSERT_TRUE(buffers.ok()) << buffers.status().to_string();
    EXPECT_EQ((*buffers)[1].size(), size);
    expect_next_run_works();
  }
}

TEST_F(ProcessRunnerTest, every_task_runs_once_on_some_thread) {
  Image image = code({
      0x48, 0x8b, 0x07,        // mov rax,[rdi]
      0x4c, 0x39, 0xc1,        // 1: cmp rcx,r8
      0x73, 0x09,              // jae 2
      0xf0, 0xfe, 0x04, 0x08,  // lock inc byte [rax+rcx]
      0x48, 0xff, 0xc1,        // inc rcx
      0xeb, 0xf2,              // jmp 1
      0xc3                     // 2: ret
  });
  for (const uint64_t tasks : {1, 2, 7, 100}) {
    std::ranges::fill(m_buffers[0], uint8_t{0});
    image.tasks = tasks;
    ASSERT_TRUE(m_runner->run(image, 5'000, 3).ok());
    for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(m_buffers[0][i], i < tasks ? 3 : 0) << i << " of " << tasks;
  }
}

TEST_F(ProcessRunnerTest, a_candidate_reads_the_extents_of_its_launch) {
  // mov rax,[rdi]; mov r10,[r9+8]; mov [rax],r10; ret
  const Image image = code({0x48, 0x8b, 0x07, 0x4d, 0x8b, 0x51, 0x08, 0x4c, 0x89, 0x10, 0xc3});
  const auto stored = [&] {
    int64_t value = 0;
    std::memcpy(&value, m_buffers[0].data(), sizeof value);
    return value;
  };
  ASSERT_TRUE(m_runner->run(image, 5'000, 1, 1, std::vector<int64_t>{3, 50'257}).ok());
  EXPECT_EQ(stored(), 50'257);
  const std::vector<LaunchArgument> arguments = {{0, 0, m_buffers[0].size()}};
  ASSERT_TRUE(m_runner->launch(image, arguments, std::vector<int64_t>{3, 1024, 7}, 5'000).ok());
  EXPECT_EQ(stored(), 1024);
  const std::vector<int64_t> most(limits::k_launch_extents, 9), too_many(limits::k_launch_extents + 1, 9);
  ASSERT_TRUE(m_runner->launch(image, arguments, most, 5'000).ok());
  EXPECT_EQ(stored(), 9);
  EXPECT_EQ(m_runner->launch(image, arguments, too_many, 5'000).status().code(), StatusCode::out_of_range);
  expect_next_run_works();
}

TEST_F(ProcessRunnerTest, what_has_a_source_repeats_it_and_cannot_be_written) {
  const auto pool = SamplePool::of(DType::f32);
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  constexpr uint64_t k_start = SamplePool::k_bytes - 192, k_size = SamplePool::k_bytes + 1'000;
  auto buffers = m_runner->prepare(std::vector<CandidateBuffer>{{k_size, {*pool, k_start}}, {64, {}}});
  ASSERT_TRUE(buffers.ok()) << buffers.status().to_string();
  const std::span<const uint8_t> samples = (*pool)->bytes();
  for (uint64_t i = 0; i < k_size; i += 37) ASSERT_EQ((*buffers)[0][i], samples[(k_start + i) % samples.size()]) << i;

  for (const int32_t offset : {0, 191, 192, static_cast<int32_t>(k_size - 1)}) {
    // mov rax,[rdi]; mov r9,[rdi+8]; mov al,[rax+offset]; mov [r9],al; ret
    std::vector<uint8_t> load = {0x48, 0x8b, 0x07, 0x4c, 0x8b, 0x4f, 0x08, 0x8a, 0x80,
                                 0,    0,    0,    0,    0x41, 0x88, 0x01, 0xc3};
    std::memcpy(load.data() + 9, &offset, 4);
    const auto run = m_runner->run(code(load), 5'000, 1);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    EXPECT_EQ((*buffers)[1][0], (*buffers)[0][static_cast<size_t>(offset)]) << offset;
  }
  // mov rax,[rdi]; mov byte [rax],1; ret
  const auto run = m_runner->run(code({0x48, 0x8b, 0x07, 0xc6, 0x00, 0x01, 0xc3}), 5'000, 1);
  EXPECT_EQ(run.status().code(), StatusCode::aborted);
  EXPECT_NE(run.status().message().find(fmt::format("signal {} ", SIGSEGV)), std::string::npos);
  expect_next_run_works();
}

TEST_F(ProcessRunnerTest, an_entry_outside_the_code_is_refused) {
  Image image = code(k_return);
  image.entry = 1;
  EXPECT_EQ(m_runner->run(image, 1'000, 1).status().code(), StatusCode::invalid_argument);
}

/// The process's child of that program; 0 when there is none.
pid_t child_running(const std::string& program) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string name, state;
    pid_t pid = 0, parent = 0;
    std::ifstream stat(entry.path() / "stat");
    if (stat >> pid >> name >> state >> parent && parent == getpid() && name == "(" + program + ")") return pid;
  }
  return 0;
}

TEST(ProcessRunner, a_worker_has_no_more_threads_than_processors_it_may_run_on) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
  }
  for (const cpu_set_t* allowed : {&one, &before}) {
    ASSERT_EQ(sched_setaffinity(0, sizeof *allowed, allowed), 0);
    const auto runner = ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH});
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    ASSERT_TRUE((*runner)->prepare(std::vector<CandidateBuffer>{{64, {}}}).ok());
    ASSERT_TRUE((*runner)->run(code(k_return), 5'000, 1).ok());
    const pid_t worker = child_running("kiln-executor");
    ASSERT_NE(worker, 0);
    const auto threads = std::distance(std::filesystem::directory_iterator(fmt::format("/proc/{}/task", worker)),
                                       std::filesystem::directory_iterator());
    EXPECT_EQ(threads, std::min(CPU_COUNT(allowed), 64));
  }
}

TEST(ProcessRunner, candidates_are_timed_on_as_many_threads_as_asked_for_where_there_are_so_many) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (const uint32_t threads : {1U, 2U, 1000U}) {
    const auto runner = ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH, .timed_threads = threads});
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    ASSERT_TRUE((*runner)->prepare(std::vector<CandidateBuffer>{{64, {}}}).ok());
    const auto times = (*runner)->time(code(k_return), 5'000, 3, 4096, true);
    ASSERT_TRUE(times.ok()) << times.status().to_string();
    EXPECT_EQ(times->threads, std::min<uint32_t>({threads, static_cast<uint32_t>(CPU_COUNT(&allowed)), 64}));
  }
}

TEST(ProcessRunner, a_missing_executor_is_an_error) {
  EXPECT_EQ(ProcessRunner::create({.executor_path = "/nowhere"}).status().code(), StatusCode::unavailable);
}

}  // namespace
}  // namespace kiln
