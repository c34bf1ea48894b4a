#include "base/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kiln {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Split, parts_keep_their_order_and_empty_ones_are_left_out) {
  EXPECT_THAT(split("/a:/b c:/a", ':'), ElementsAre("/a", "/b c", "/a"));
  EXPECT_THAT(split("::/a::/b:", ':'), ElementsAre("/a", "/b"));
  EXPECT_THAT(split("/a:/b", ','), ElementsAre("/a:/b"));
  EXPECT_THAT(split("", ':'), IsEmpty());
  EXPECT_THAT(split(":", ':'), IsEmpty());
}

}  // namespace
}  // namespace kiln
