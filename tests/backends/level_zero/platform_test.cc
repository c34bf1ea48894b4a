#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "backends/level_zero/runtime/device.h"
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

/// The stand-in's device, with a fault or without; null where it cannot run.
std::unique_ptr<Platform> platform_with(const char* fault) {
  setenv("STAND_IN_FAULT", fault, 1);
  auto platform = std::make_unique<Platform>(SearchPath::configured());
  return platform->status().ok() ? std::move(platform) : nullptr;
}

/// What loading code says that needs matrix units, and is none otherwise.
Status load_of_matrix_code(const Platform& platform) {
  const auto device = open_device(platform, platform.devices()[0]);
  EXPECT_TRUE(device.ok()) << device.status().to_string();
  const Image image{.features = bit(Feature::matrix_units)};
  return (*device)->load(image, image.code).status();
}

TEST(Platform, a_device_without_matrix_units_is_used_without) {
  const auto platform = platform_with("no-matrix-units");
  if (platform == nullptr) GTEST_SKIP() << "no device";
  const FoundDevice& device = platform->devices()[0];
  EXPECT_EQ(device.features, device.family->features);
  const Status refused = load_of_matrix_code(*platform);
  EXPECT_EQ(refused.code(), StatusCode::failed_precondition);
  EXPECT_THAT(refused.message(), testing::HasSubstr("needs matrix units"));
}

TEST(Platform, matrix_units_are_taken_for_there_unless_the_driver_says_no) {
  for (const char* fault : {"", "no-matrix-functions"}) {
    const auto platform = platform_with(fault);
    if (platform == nullptr) GTEST_SKIP() << "no device";
    EXPECT_EQ(describe(platform->devices()[0].features & ~platform->devices()[0].family->features), "matrix units");
    EXPECT_EQ(load_of_matrix_code(*platform).code(), StatusCode::data_loss) << "the code is none";
  }
}

}  // namespace
}  // namespace kiln::level_zero
