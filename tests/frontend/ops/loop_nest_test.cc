#include "frontend/ops/loop_nest.h"

#include <gtest/gtest.h>

#include <random>

#include "frontend/kernel/affine.h"

namespace kiln {
namespace {

std::vector<int64_t> indices_of(const LoopNest& nest) {
  std::vector<int64_t> indices;
  nest.for_each_run([&](int64_t first, int64_t step, int64_t count) {
    for (int64_t i = 0; i < count; ++i) indices.push_back(first + i * step);
  });
  return indices;
}

TEST(LoopNest, OfALineHasTheLinesElements) {
  EXPECT_EQ(indices_of(LoopNest::of_line(5, 3, 4)), (std::vector<int64_t>{5, 8, 11, 14}));
  EXPECT_EQ(indices_of(LoopNest::of_line(5, 3, 1)), (std::vector<int64_t>{5}));
  EXPECT_EQ(indices_of(LoopNest::of_line(5, 0, 2)), (std::vector<int64_t>{5, 5}));
}

TEST(LoopNest, LinesThroughWholeDimsAreSplit) {
  const std::vector<int64_t> extents{2, 3, 1, 4, 5};
  LoopNest columns = LoopNest::of_line(3, 5, 2 * 3 * 4);
  ASSERT_TRUE(columns.split_by_dims(extents));
  EXPECT_EQ(columns.loops.size(), 3u);
  LoopNest every_second = LoopNest::of_line(1, 10, 3 * 2);
  ASSERT_TRUE(every_second.split_by_dims(extents));
  EXPECT_EQ(every_second.loops.size(), 2u);
}

TEST(LoopNest, WhatIsSplitIsRenamedAsEachElementIs) {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t extent) { return static_cast<int64_t>(random() % static_cast<uint64_t>(extent)); };
  int split = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<int64_t> extents(static_cast<size_t>(1 + below(4))), memory_strides(extents.size());
    int64_t elements = 1;
    for (size_t d = 0; d < extents.size(); ++d) {
      elements *= extents[d] = 1 + below(6);
      memory_strides[d] = below(40) - 10;
    }
    const int64_t step = below(elements + 1), first = below(elements), sign = below(4) == 0 ? -1 : 1;
    const int64_t reach = sign > 0 ? elements - 1 - first : first;
    LoopNest nest = LoopNest::of_line(first, sign * step, 1 + below(step == 0 ? 9 : reach / step + 1));
    std::vector<int64_t> expected = indices_of(nest);
    for (int64_t& index : expected) index = 1000 + place_of(index, extents, memory_strides);
    if (!nest.split_by_dims(extents)) continue;
    ++split;
    nest.rename([&](int64_t index) { return 1000 + place_of(index, extents, memory_strides); });
    EXPECT_EQ(indices_of(nest), expected);
  }
  EXPECT_GT(split, 5000);
}

}  // namespace
}  // namespace kiln
