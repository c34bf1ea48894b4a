#include "jit/worker/zygote.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

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

}  // namespace
}  // namespace kiln
