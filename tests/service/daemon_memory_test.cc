#include "tests/service/daemon_testing.h"

namespace kiln {
namespace {

// In a program of its own: sanitizers need the address space that is bounded here.
TEST_F(DaemonTest, a_worker_without_bounds_on_memory_ends_alone) {
  EXPECT_EQ(build("oom").status().code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(build("ok").ok());
}

}  // namespace
}  // namespace kiln
