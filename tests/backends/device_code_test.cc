#include "backends/device_code.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

TEST(DeviceCode, what_is_packed_is_unpacked) {
  const DeviceCode code{"driver 7", {1, 2, 3}, {4}, {5, 6}};
  const auto bytes = pack_device_code(code);
  const auto view = unpack_device_code(bytes);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->driver, code.driver);
  EXPECT_TRUE(std::ranges::equal(view->native, code.native));
  EXPECT_TRUE(std::ranges::equal(view->portable, code.portable));
  EXPECT_TRUE(std::ranges::equal(view->launch, code.launch));
}

TEST(DeviceCode, native_code_is_for_the_driver_it_is_bound_to_and_for_all_when_bound_to_none) {
  const auto bound = pack_device_code({"7", {1}, {2}, {}}), unbound = pack_device_code({"", {1}, {}, {}}),
             portable = pack_device_code({"", {}, {2}, {}});
  EXPECT_TRUE(unpack_device_code(bound)->is_native_for("7"));
  EXPECT_FALSE(unpack_device_code(bound)->is_native_for("8"));
  EXPECT_TRUE(unpack_device_code(unbound)->is_native_for("8"));
  EXPECT_FALSE(unpack_device_code(portable)->is_native_for(""));
}

TEST(DeviceCode, cut_lengthened_and_foreign_bytes_are_refused) {
  auto bytes = pack_device_code({"7", {1, 2}, {3}, {4}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(unpack_device_code(std::span(bytes).first(size)).ok()) << size;
  }
  bytes.push_back(0);
  EXPECT_FALSE(unpack_device_code(bytes).ok());
  EXPECT_FALSE(unpack_device_code(pack_device_code({"7", {}, {}, {4}})).ok()) << "without code";
}

}  // namespace
}  // namespace kiln
