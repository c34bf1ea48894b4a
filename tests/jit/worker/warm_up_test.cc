#include "jit/worker/warm_up.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

namespace kiln {
namespace {

TEST(WarmUp, compiles_and_leaves_the_process_with_one_thread) {
  const Status status = warm_up_compilers();
  EXPECT_TRUE(status.ok()) << status.to_string();
  const std::filesystem::directory_iterator threads("/proc/self/task");
  EXPECT_EQ(std::distance(begin(threads), end(threads)), 1);
}

}  // namespace
}  // namespace kiln
