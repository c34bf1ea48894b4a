#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/level_zero/runtime/platform.h"

// What a host without a usable driver says. Runs with ZE_ENABLE_ALT_DRIVERS naming a driver that is not there.
namespace kiln::level_zero {
namespace {

using testing::HasSubstr;

TEST(Loader, its_absence_is_not_found) {
  const auto api = Api::open("libze_loader_that_is_not_there.so.1");
  EXPECT_EQ(api.status().code(), StatusCode::not_found);
  EXPECT_THAT(api.status().message(), HasSubstr("libze_loader_that_is_not_there.so.1"));
}

TEST(Loader, a_library_that_lacks_a_function_is_refused_by_its_name) {
  const auto api = Api::open("libm.so.6");
  EXPECT_EQ(api.status().code(), StatusCode::failed_precondition);
  EXPECT_THAT(api.status().message(), HasSubstr("has no zeInit"));
}

TEST(Loader, a_loader_without_a_driver_is_unavailable_and_asked_no_further) {
  const Platform platform(loader_library());
  EXPECT_TRUE(platform.devices().empty());
  ASSERT_FALSE(platform.components().empty());
  EXPECT_EQ(platform.components()[0].name, "loader");
  EXPECT_FALSE(platform.components()[0].usable);
  if (platform.status().code() == StatusCode::not_found) GTEST_SKIP() << platform.status().to_string();
  EXPECT_EQ(platform.status().code(), StatusCode::unavailable);
  EXPECT_THAT(platform.status().message(), HasSubstr("finds no usable driver"));
}

TEST(Loader, absence_is_a_component_that_says_why) {
  const Platform platform("libze_loader_that_is_not_there.so.1");
  EXPECT_EQ(platform.status().code(), StatusCode::not_found);
  ASSERT_EQ(platform.components().size(), 1U);
  EXPECT_THAT(platform.components()[0].found, HasSubstr("no loader"));
}

}  // namespace
}  // namespace kiln::level_zero
