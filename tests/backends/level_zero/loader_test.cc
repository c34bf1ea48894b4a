#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "backends/level_zero/runtime/platform.h"

// What a host without a usable driver says. Runs with ZE_ENABLE_ALT_DRIVERS naming a driver that is not there.
namespace kiln::level_zero {
namespace {

using testing::HasSubstr;

const std::filesystem::path k_fake = KILN_FAKE_LOADER;

TEST(Loader, its_absence_is_not_found_and_a_component_that_says_why) {
  const Platform platform(SearchPath::configured());
  if (platform.status().code() != StatusCode::not_found) GTEST_SKIP() << "this host has a loader";
  EXPECT_THAT(platform.status().message(), HasSubstr("libze_loader.so.1"));
  ASSERT_EQ(platform.components().size(), 1U);
  EXPECT_THAT(platform.components()[0].found, HasSubstr("no loader"));
}

TEST(Loader, a_folder_comes_before_the_systems_and_a_missing_function_is_named) {
  const auto api = Api::open({{{"/nonexistent", "test"}, {k_fake.parent_path(), "test"}}});
  EXPECT_EQ(api.status().code(), StatusCode::failed_precondition);
  EXPECT_THAT(api.status().message(), HasSubstr(k_fake.string() + " has no zeInit"));
}

TEST(Loader, one_without_a_driver_is_unavailable_and_asked_no_further) {
  const Platform platform(SearchPath::configured());
  EXPECT_TRUE(platform.devices().empty());
  ASSERT_FALSE(platform.components().empty());
  EXPECT_EQ(platform.components()[0].name, "loader");
  EXPECT_FALSE(platform.components()[0].usable);
  if (platform.status().code() != StatusCode::unavailable) GTEST_SKIP() << platform.status().to_string();
  EXPECT_THAT(platform.status().message(), HasSubstr("finds no usable driver"));
}

TEST(Loader, the_hosts_platform_is_behind_the_one_in_a_configured_folder) {
  set_library_hints({k_fake.parent_path(), ""});
  EXPECT_THAT(Platform::host().status().message(), HasSubstr(k_fake.string()));
}

}  // namespace
}  // namespace kiln::level_zero
