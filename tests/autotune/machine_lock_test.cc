#include "autotune/machine_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/limits.h"

namespace kiln {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Take = MachineLock (*)();

/// Whether this process gets its lock only when another one, which holds one for a while, has let go of it.
bool waits_for(Take mine, Take others) {
  int held[2];
  EXPECT_EQ(pipe(held), 0);
  const pid_t other = fork();
  if (other == 0) {
    const MachineLock lock = others();
    if (write(held[1], "h", 1) != 1) _exit(1);
    std::this_thread::sleep_for(milliseconds(100));
    const auto now = steady_clock::now();  // one clock for all processes
    _exit(write(held[1], &now, sizeof now) == sizeof now ? 0 : 1);
  }
  char begun = 0;
  EXPECT_EQ(read(held[0], &begun, 1), 1);
  const MachineLock lock = mine();
  const auto had_it = steady_clock::now();
  steady_clock::time_point let_go;
  EXPECT_EQ(read(held[0], &let_go, sizeof let_go), ssize_t{sizeof let_go});
  EXPECT_EQ(waitpid(other, nullptr, 0), other);
  close(held[0]);
  close(held[1]);
  return had_it >= let_go;
}

TEST(MachineLock, one_process_measures_at_a_time) {
  EXPECT_TRUE(waits_for(MachineLock::exclusive, MachineLock::exclusive));
}

TEST(MachineLock, nothing_compiles_beside_a_measurement) {
  EXPECT_TRUE(waits_for(MachineLock::shared, MachineLock::exclusive));
  EXPECT_TRUE(waits_for(MachineLock::exclusive, MachineLock::shared));
}

TEST(MachineLock, processes_compile_beside_each_other) {
  const auto begin = steady_clock::now();
  const MachineLock one = MachineLock::shared(), other = MachineLock::shared();
  EXPECT_LT(steady_clock::now() - begin, milliseconds(limits::k_machine_lock_ms));
}

}  // namespace
}  // namespace kiln
