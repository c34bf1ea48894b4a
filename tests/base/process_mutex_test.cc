#include "base/process_mutex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace kiln {
namespace {

/// While another thread takes and lets go of it all the time, every child finds it free.
TEST(ProcessMutex, IsFreeInAChildWheneverItWasForked) {
  std::atomic<bool> done = false;
  std::thread holder([&] {
    while (!done) {
      const std::scoped_lock lock(process_mutex());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  const uint32_t depth = fork_depth();
  for (int i = 0; i < 50; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(5);  // one that waits for ever ends by a signal
      const std::scoped_lock lock(process_mutex());
      _exit(fork_depth() == depth + 1 ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0) << "child " << i;
  }
  EXPECT_EQ(fork_depth(), depth);
  done = true;
  holder.join();
}

}  // namespace
}  // namespace kiln
