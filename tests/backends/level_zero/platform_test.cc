#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "backends/level_zero/runtime/platform.h"

// Runs with the stand-in's driver, and a second one that answers nothing before it.
namespace kiln::level_zero {
namespace {

TEST(Platform, a_driver_that_fails_hides_no_device_of_another) {
  setenv("STAND_IN_FAULT", "broken-driver", 1);
  const Platform platform(SearchPath::configured());
  ASSERT_FALSE(platform.components().empty());
  if (!platform.components()[0].usable) GTEST_SKIP() << platform.status().to_string();
  EXPECT_TRUE(platform.status().ok()) << platform.status().to_string();
  EXPECT_EQ(platform.devices().size(), 1U);
  const auto& broken = platform.components()[1];
  EXPECT_FALSE(broken.usable);
  EXPECT_THAT(broken.found, testing::HasSubstr("zeDriverGetProperties"));
}

}  // namespace
}  // namespace kiln::level_zero
