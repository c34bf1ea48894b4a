#include "verdict/demanded_elements.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kiln {
namespace {

constexpr size_t k_budget = 12'288;

/// Sums over rectangles that begin at the origin, so that any rectangle's points are counted in four look-ups.
class PointCount {
 public:
  PointCount(const std::vector<int64_t>& elements, int64_t rows, int64_t columns)
      : m_columns(columns + 1), m_sums(static_cast<size_t>((rows + 1) * (columns + 1)), 0) {
    for (int64_t flat : elements) ++at(flat / columns + 1, flat % columns + 1);
    for (int64_t row = 1; row <= rows; ++row) {
      for (int64_t column = 1; column <= columns; ++column) {
        at(row, column) += at(row - 1, column) + at(row, column - 1) - at(row - 1, column - 1);
      }
    }
  }
  int64_t within(int64_t row, int64_t column, int64_t height, int64_t width) {
    return at(row + height, column + width) - at(row, column + width) - at(row + height, column) + at(row, column);
  }

 private:
  int64_t& at(int64_t row, int64_t column) { return m_sums[static_cast<size_t>(row * m_columns + column)]; }
  int64_t m_columns;
  std::vector<int64_t> m_sums;
};

TEST(DemandedElements, OfASmallOutputAreAll) {
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{}, {1}, {37, 65}, {3, 1, 5}, {0}, {4, 0}}) {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    const auto elements = demanded_elements(dims, k_budget, 1);
    ASSERT_EQ(elements.size(), static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(elements[static_cast<size_t>(i)], i);
  }
}

TEST(DemandedElements, AreDistinctInsideAndWithinTheBudget) {
  for (const std::vector<int64_t>& dims :
       {std::vector<int64_t>{512, 3'072}, {12, 512, 64}, {100'000}, {100'000, 1}, {3, 50'257}, {512, 50'257}}) {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    for (size_t budget : {size_t{1}, size_t{9}, size_t{250}, k_budget}) {
      const auto elements = demanded_elements(dims, budget, 1);
      EXPECT_LE(elements.size(), budget);
      EXPECT_GE(elements.size(), std::min(budget, size_t{9}) * 2 / 3);
      EXPECT_EQ(std::set(elements.begin(), elements.end()).size(), elements.size());
      EXPECT_GE(std::ranges::min(elements), 0);
      EXPECT_LT(std::ranges::max(elements), count);
    }
  }
}

TEST(DemandedElements, BeginWithTheCorners) {
  const auto elements = demanded_elements({512, 3'072}, k_budget, 1);
  for (int64_t corner : {0, 3'071, 511 * 3'072, 512 * 3'072 - 1}) {
    EXPECT_NE(std::find(elements.begin(), elements.begin() + 9, corner), elements.begin() + 9) << corner;
  }
}

TEST(DemandedElements, LeaveNoTileUnseenWhateverItsShapeAndPlace) {
  PointCount points(demanded_elements({512, 3'072}, k_budget, 1), 512, 3'072);
  // 2 * 512 * 3072 / 10946 is 287.
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{6, 64},
                                      {6, 48},
                                      {14, 32},
                                      {18, 16},
                                      {288, 1},
                                      {1, 288},
                                      {144, 2},
                                      {36, 8},
                                      {72, 4},
                                      {3, 96}}) {
    for (int64_t row = 0; row + height <= 512; ++row) {
      for (int64_t column = 0; column + width <= 3'072; ++column) {
        ASSERT_GT(points.within(row, column, height, width), 0)
            << height << "x" << width << " at " << row << "," << column;
      }
    }
  }
}

TEST(DemandedElements, SeeTheEdgesOfAVeryWideOutput) {
  std::array<int, 4> seen{};
  for (int64_t flat : demanded_elements({512, 50'257}, k_budget, 1)) {
    seen[0] += flat / 50'257 == 0, seen[1] += flat / 50'257 == 511;
    seen[2] += flat % 50'257 == 0, seen[3] += flat % 50'257 == 50'256;
  }
  for (int count : seen) EXPECT_GE(count, 40);
}

TEST(DemandedElements, APrefixSeesAllOfTheMatrixThinly) {
  const auto elements = demanded_elements({512, 3'072}, k_budget, 1);
  PointCount points({elements.begin(), elements.begin() + 2'000}, 512, 3'072);
  for (int64_t row = 0; row < 512; row += 64) {
    for (int64_t column = 0; column < 3'072; column += 384) EXPECT_GT(points.within(row, column, 64, 384), 0);
  }
}

TEST(DemandedElements, ComeTheSameForEqualSeedsOnly) {
  EXPECT_EQ(demanded_elements({512, 3'072}, k_budget, 1), demanded_elements({512, 3'072}, k_budget, 1));
  EXPECT_NE(demanded_elements({512, 3'072}, k_budget, 1), demanded_elements({512, 3'072}, k_budget, 2));
}

}  // namespace
}  // namespace kiln
