// What the execution worker of a device makes of requests that no parent should send: it refuses them and goes on.
#include "jit/worker/executor_wire.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "backends/device_code.h"
#include "base/fd.h"
#include "jit/worker/send_struct.h"
#include "tests/stand_ins/toy/toy_device.h"

namespace kiln {
namespace {

class DeviceExecutor : public testing::Test {
 protected:
  static constexpr uint64_t k_data_bytes = 4096;

  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    m_socket.reset(ends[0]);
    const UniqueFd theirs(ends[1]);
    const std::string parent = std::to_string(getpid());
    m_child = fork();
    if (m_child == 0) {
      setenv("TOY_DRIVER", "7", 1);
      close(ends[0]);
      dup2(ends[1], KILN_EXECUTOR_SOCKET);
      execl(TOY_EXECUTOR, TOY_EXECUTOR, parent.c_str(), toy::k_backend.data(), toy::k_target.data(), "7", nullptr);
      _exit(127);
    }
    const kiln_executor_reply greeting = receive();
    EXPECT_EQ(greeting.result, static_cast<uint32_t>(KILN_EXECUTOR_OK));
    EXPECT_EQ(greeting.message, to_string(toy::k_machine));
    m_data.reset(memfd_create("data", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(m_data.get(), k_data_bytes), 0);
    EXPECT_EQ(answer_to({.command = KILN_EXECUTOR_DATA, .bytes = k_data_bytes}, m_data).result,
              static_cast<uint32_t>(KILN_EXECUTOR_OK));
  }
  void TearDown() override {
    m_socket.reset();
    int status = 0;
    ASSERT_EQ(waitpid(m_child, &status, 0), m_child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }

  kiln_executor_reply receive() {
    kiln_executor_reply reply{};
    EXPECT_EQ(recv(m_socket.get(), &reply, sizeof reply, 0), static_cast<ssize_t>(sizeof reply));
    EXPECT_EQ(reply.magic, KILN_EXECUTOR_MAGIC);
    return reply;
  }

  kiln_executor_reply answer_to(kiln_executor_request request, const UniqueFd& descriptor) {
    request.magic = KILN_EXECUTOR_MAGIC;
    EXPECT_TRUE(send_struct(m_socket.get(), &request, sizeof request, descriptor.get()));
    return receive();
  }
  /// Sent with a descriptor of k_data_bytes zeros.
  kiln_executor_reply answer_to(const kiln_executor_request& request) {
    const UniqueFd zeros(memfd_create("zeros", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(zeros.get(), k_data_bytes), 0);
    return answer_to(request, zeros);
  }

  void expect_out_of_bounds(const kiln_executor_request& request) {
    const kiln_executor_reply reply = answer_to(request);
    EXPECT_EQ(reply.result, static_cast<uint32_t>(KILN_EXECUTOR_REFUSED));
    EXPECT_NE(std::string(reply.message).find("out of bounds"), std::string::npos) << reply.message;
  }

  UniqueFd m_socket, m_data;
  pid_t m_child = -1;
};

TEST_F(DeviceExecutor, what_lies_out_of_bounds_is_refused_and_the_next_request_answered) {
  const kiln_executor_request run{.command = KILN_EXECUTOR_RUN, .bytes = k_data_bytes};
  kiln_executor_request request = run;
  request.buffer_count = KILN_EXECUTOR_BUFFERS + 1;
  expect_out_of_bounds(request);
  request = run;
  request.repetitions = KILN_EXECUTOR_REPETITIONS + 1;
  expect_out_of_bounds(request);
  request = run;
  request.extent_count = KILN_EXECUTOR_EXTENTS + 1;
  expect_out_of_bounds(request);
  request = run;
  request.used_bytes = k_data_bytes + 1;
  expect_out_of_bounds(request);
  request = run;
  request.used_bytes = k_data_bytes;
  request.buffer_count = 1;
  request.buffers[0] = {.offset = k_data_bytes + 1, .bytes = 1, .pool = KILN_EXECUTOR_NO_POOL};
  expect_out_of_bounds(request);
}

TEST_F(DeviceExecutor, a_kernel_reads_the_extents_of_its_launch) {
  // mov rax,[rdi]; mov r10,[r9+8]; mov [rax],r10; ret: the host's convention (backends/cpu/runtime/entry.h)
  const std::vector<uint8_t> code = pack_device_code(
      {.portable = {0x48, 0x8b, 0x07, 0x4d, 0x8b, 0x51, 0x08, 0x4c, 0x89, 0x10, 0xc3}, .launch = {1, 0, 0, 0}});
  const UniqueFd memory(memfd_create("code", MFD_CLOEXEC));
  ASSERT_EQ(write(memory.get(), code.data(), code.size()), static_cast<ssize_t>(code.size()));
  kiln_executor_request run{.command = KILN_EXECUTOR_RUN, .bytes = code.size(), .used_bytes = 64, .tasks = 1};
  run.repetitions = 1, run.buffer_count = 1, run.extent_count = 2;
  run.buffers[0] = {.offset = 0, .bytes = 64, .pool = KILN_EXECUTOR_NO_POOL};
  run.extents[0] = 3, run.extents[1] = 50'257;
  const kiln_executor_reply reply = answer_to(run, memory);
  ASSERT_EQ(reply.result, static_cast<uint32_t>(KILN_EXECUTOR_OK)) << reply.message;
  int64_t stored = 0;
  ASSERT_EQ(pread(m_data.get(), &stored, sizeof stored, 0), static_cast<ssize_t>(sizeof stored));
  EXPECT_EQ(stored, 50'257);
}

TEST_F(DeviceExecutor, a_kernel_is_timed_on_copies) {
  // mov rax,[rdi]; mov r10,[r9]; add [rax],r10; ret
  const std::vector<uint8_t> code = pack_device_code(
      {.portable = {0x48, 0x8b, 0x07, 0x4d, 0x8b, 0x11, 0x4c, 0x01, 0x10, 0xc3}, .launch = {1, 0, 0, 0}});
  const UniqueFd memory(memfd_create("code", MFD_CLOEXEC));
  ASSERT_EQ(write(memory.get(), code.data(), code.size()), static_cast<ssize_t>(code.size()));
  kiln_executor_request time{.command = KILN_EXECUTOR_TIME, .bytes = code.size(), .used_bytes = 64, .tasks = 1};
  time.repetitions = 3, time.buffer_count = 1, time.extent_count = 1, time.is_fresh = 1, time.swept_bytes = 4096;
  time.buffers[0] = {.offset = 0, .bytes = 64, .pool = KILN_EXECUTOR_NO_POOL};
  time.extents[0] = 7;
  for (int i = 0; i < 2; ++i, time.is_fresh = 0) {
    const kiln_executor_reply reply = answer_to(time, memory);
    ASSERT_EQ(reply.result, static_cast<uint32_t>(KILN_EXECUTOR_OK)) << reply.message;
    EXPECT_EQ(reply.repetitions, 3u);
    EXPECT_EQ(reply.threads, 1u);
    for (uint32_t r = 0; r < reply.repetitions; ++r) EXPECT_EQ(reply.was_disturbed[r], 0);
  }
  int64_t stored = -1;
  ASSERT_EQ(pread(m_data.get(), &stored, sizeof stored, 0), static_cast<ssize_t>(sizeof stored));
  EXPECT_EQ(stored, 0);
  kiln_executor_request run = time;
  run.command = KILN_EXECUTOR_RUN, run.repetitions = 1;
  EXPECT_EQ(answer_to(run, memory).result, static_cast<uint32_t>(KILN_EXECUTOR_OK));
  ASSERT_EQ(pread(m_data.get(), &stored, sizeof stored, 0), static_cast<ssize_t>(sizeof stored));
  EXPECT_EQ(stored, 7) << "what was timed has changed nothing";
}

TEST_F(DeviceExecutor, code_that_is_none_is_refused_and_a_pool_beyond_the_last_one) {
  EXPECT_EQ(answer_to({.command = KILN_EXECUTOR_RUN, .bytes = k_data_bytes}).result,
            static_cast<uint32_t>(KILN_EXECUTOR_REFUSED));
  EXPECT_EQ(answer_to({.command = KILN_EXECUTOR_POOL, .bytes = k_data_bytes, .pool = KILN_EXECUTOR_POOLS}).result,
            static_cast<uint32_t>(KILN_EXECUTOR_REFUSED));
}

}  // namespace
}  // namespace kiln
