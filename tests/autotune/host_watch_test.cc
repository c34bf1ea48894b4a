#include "autotune/host_watch.h"

#include <gtest/gtest.h>

#include "base/usable_processors.h"

namespace kiln {
namespace {

TEST(HostWatch, says_how_the_machine_is_and_what_samples_ran_on) {
  HostWatch watch;
  watch.note({.seconds = 1, .threads = 3});
  const HostState state = watch.state();
  EXPECT_EQ(state.processors, usable_processors());
  EXPECT_EQ(state.threads, 3);
  EXPECT_GE(state.load, 0);
  EXPECT_GE(state.stolen, 0);
  EXPECT_LE(state.stolen, 1);
}

}  // namespace
}  // namespace kiln
