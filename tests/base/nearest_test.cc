#include "base/nearest.h"

#include <gtest/gtest.h>

#include <array>

namespace kiln {
namespace {

TEST(NearestName, DistanceCountsSingleCharacterEdits) {
  EXPECT_EQ(edit_distance("matmul", "matmul"), 0u);
  EXPECT_EQ(edit_distance("matmull", "matmul"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
}

TEST(NearestName, AMisspellingFindsItsWordAndNonsenseFindsNone) {
  constexpr std::array<std::string_view, 3> k_names{"matmul", "layer_norm", "add"};
  EXPECT_EQ(nearest_name("layernorm", k_names), "layer_norm");
  EXPECT_EQ(nearest_name("mtmul", k_names), "matmul");
  EXPECT_EQ(nearest_name("convolution", k_names), "");
  EXPECT_EQ(nearest_name(std::string(100, 'a'), k_names), "");
}

}  // namespace
}  // namespace kiln
