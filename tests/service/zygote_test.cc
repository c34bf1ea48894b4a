#include "jit/worker/zygote.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace kiln {
namespace {

bool has_children() {
  pid_t child = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (std::ifstream(task.path() / "children") >> child) return true;
  }
  return false;
}

TEST(Zygote, starts_nothing_after_kill_all) {
  Zygote zygote({KILN_FAKE_WORKER, {}});
  ASSERT_TRUE(zygote.fork_worker().ok());
  EXPECT_TRUE(has_children());
  zygote.kill_all();
  EXPECT_EQ(zygote.fork_worker().status().code(), StatusCode::unavailable);
  EXPECT_EQ(zygote.warm().code(), StatusCode::unavailable);
  EXPECT_FALSE(has_children());
}

/// Whether the worker has hung up within a while.
bool has_ended(const Zygote::Worker& worker, int patience_ms) {
  pollfd socket{worker.socket.get(), POLLIN, 0};
  return poll(&socket, 1, patience_ms) == 1 && (socket.revents & POLLHUP) != 0;
}

TEST(Zygote, of_many_workers_that_leave_and_do_not_end_the_oldest_are_killed) {
  Zygote zygote({KILN_FAKE_WORKER, {}});
  std::vector<Zygote::Worker> waiting;  // for a job that never comes
  for (int i = 0; i < 18; ++i) {
    auto worker = zygote.fork_worker();
    ASSERT_TRUE(worker.ok()) << worker.status().to_string();
    waiting.push_back(std::move(*worker));
    zygote.leave(waiting.back());
  }
  EXPECT_TRUE(has_ended(waiting[0], 30'000));
  EXPECT_TRUE(has_ended(waiting[1], 30'000));
  EXPECT_FALSE(has_ended(waiting[2], 50));
  EXPECT_FALSE(has_ended(waiting.back(), 0));
}

}  // namespace
}  // namespace kiln
