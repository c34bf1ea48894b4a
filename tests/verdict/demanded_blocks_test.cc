#include "verdict/demanded_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "verdict/output_check.h"

namespace kiln {
namespace {

/// Which elements are demanded, as flat indices; that none comes twice from one block.
std::set<int64_t> elements_of(const Demand& demand, const DemandedBlocks& chosen) {
  std::set<int64_t> elements;
  const int64_t columns = demand.dims.empty() ? 1 : demand.dims.back();
  for (const DemandedBlock& block : chosen.blocks) {
    EXPECT_TRUE(std::ranges::is_sorted(block.rows) && std::ranges::is_sorted(block.columns));
    EXPECT_LE(block.rows.size() * block.columns.size(), size_t{1} << 18);
    for (const int64_t row : block.rows) {
      for (const int64_t column : block.columns) elements.insert(row * columns + column);
    }
  }
  return elements;
}

/// Whether each rectangle of `height` x `width`, wherever it lies in a matrix of the last two dims, holds an element.
void expect_each_rectangle_met(const Demand& demand, const std::set<int64_t>& elements, int64_t height, int64_t width) {
  const int64_t columns = demand.dims.back(), rows = demand.dims[demand.dims.size() - 2];
  std::vector<int64_t> sums(static_cast<size_t>((rows + 1) * (columns + 1)));
  const auto at = [&](int64_t r, int64_t c) -> int64_t& { return sums[static_cast<size_t>(r * (columns + 1) + c)]; };
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      at(r + 1, c + 1) =
          at(r, c + 1) + at(r + 1, c) - at(r, c) + static_cast<int64_t>(elements.contains(r * columns + c));
    }
  }
  for (int64_t r = 0; r + height <= rows; ++r) {
    for (int64_t c = 0; c + width <= columns; ++c) {
      ASSERT_GT(at(r + height, c + width) - at(r, c + width) - at(r + height, c) + at(r, c), 0)
          << height << "x" << width << " at " << r << "," << c;
    }
  }
}

TEST(DemandedBlocks, OfASmallOutputAreAll) {
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{}, {1}, {37, 65}, {3, 1, 5}, {0}, {4, 0}}) {
    const Demand demand{dims};
    const DemandedBlocks chosen = demanded_blocks(demand);
    const int64_t count = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
    EXPECT_EQ(elements_of(demand, chosen).size(), static_cast<size_t>(count));
    EXPECT_EQ(chosen.tiles, chosen.tiles_met);
  }
}

TEST(DemandedBlocks, MeetEachTileWhereverItLiesItsRowsAndItsColumns) {
  const Demand demand{{512, 3'072}, 6, 64, 0, 1'792, 0x1p30};
  const DemandedBlocks chosen = demanded_blocks(demand);
  const auto elements = elements_of(demand, chosen);
  EXPECT_EQ(chosen.tiles, 86U * 48);
  EXPECT_EQ(chosen.tiles_met, chosen.tiles);
  EXPECT_LT(static_cast<double>(elements.size()) * demand.element_work, 1.3 * demand.work);
  expect_each_rectangle_met(demand, elements, 6, 1);   // a lane of a tile
  expect_each_rectangle_met(demand, elements, 1, 64);  // a row of one
}

TEST(DemandedBlocks, MeetEachTileStillWhenLinesAreTooDear) {
  const Demand demand{{512, 3'072}, 6, 64, 0, 11'264, 0x1p26};
  const auto elements = elements_of(demand, demanded_blocks(demand));
  EXPECT_LT(static_cast<double>(elements.size()) * demand.element_work, 1.5 * demand.work);
  expect_each_rectangle_met(demand, elements, 6, 64);
}

TEST(DemandedBlocks, SeeEveryLaneOfATileInSomeTile) {
  const Demand demand{{512, 4'096}, 1, 64, 0, 1'280, 50'000 * 1'280.0};
  std::set<int64_t> lanes;
  for (const int64_t flat : elements_of(demand, demanded_blocks(demand))) lanes.insert(flat % 64);
  EXPECT_EQ(lanes.size(), 64U);
}

TEST(DemandedBlocks, SeeFirstAndLastRowsOfEachMatrixAndBothEndsOfRows) {
  const Demand demand{{12, 515, 70}, 8, 16, 0, 4'000, 0x1p27};
  const auto elements = elements_of(demand, demanded_blocks(demand));
  for (int64_t matrix = 0; matrix < 12; ++matrix) {
    for (const int64_t row : {0, 514}) {
      for (const int64_t column : {0, 69}) EXPECT_TRUE(elements.contains((matrix * 515 + row) * 70 + column));
    }
  }
}

TEST(DemandedBlocks, LeaveOutRowsAndThenColumnsWhereEvenOneElementATileIsTooMuchAndSaySo) {
  for (const Demand& demand :
       {Demand{{512, 50'257}, 1, 64, 0x1p25, 1'024, 0x1p29}, Demand{{25'731'584}, 1, 64, 0, 4'096, 0x1p28}}) {
    const DemandedBlocks chosen = demanded_blocks(demand);
    EXPECT_LT(chosen.tiles_met, chosen.tiles);
    EXPECT_GT(chosen.tiles_met, 100U);
    const auto elements = elements_of(demand, chosen);
    EXPECT_LT(static_cast<double>(elements.size()) * demand.element_work, 1.2 * demand.work);
    EXPECT_TRUE(elements.contains(0));
    const int64_t last = std::accumulate(demand.dims.begin(), demand.dims.end(), int64_t{1}, std::multiplies<>()) - 1;
    EXPECT_TRUE(elements.contains(last));
  }
}

TEST(DemandedBlocks, ComeTheSameAgain) {
  const Demand demand{{512, 3'072}, 6, 64, 0, 1'792, 0x1p27};
  EXPECT_EQ(demanded_blocks(demand).blocks, demanded_blocks(demand).blocks);
}

TEST(DemandedBlocks, ThatWereForeseenAreNotAskedForAgainAndOthersAre) {
  size_t asked = 0;
  OutputReference output{.dims = {64, 64}, .strides = {64, 1}, .expected = [&](int64_t flat) {
                           ++asked;
                           return static_cast<double>(flat);
                         }};
  const auto expected = [&] { return OutputCheck(output, DType::f32, Situation::plain).expected_blocks(); };
  const auto wanted = expected();
  foresee(output);
  asked = 0;
  EXPECT_EQ(expected(), wanted);
  EXPECT_EQ(asked, 0U);
  output.demand = {.dims = {64, 64}, .tile_rows = 8, .tile_columns = 8, .work = 1e5};
  EXPECT_NE(expected(), wanted);
  EXPECT_GT(asked, 0U);
}

}  // namespace
}  // namespace kiln
