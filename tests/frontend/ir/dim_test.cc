#include "frontend/ir/dim.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace kiln {
namespace {

const Dim s0 = Dim::symbol(0);
const Dim s1 = Dim::symbol(1);
constexpr int64_t k_max = std::numeric_limits<int64_t>::max();

TEST(Dim, EqualFunctionsAreEqualDims) {
  EXPECT_EQ(s0 * s1 + s0, s0 * (s1 + 1));
  EXPECT_EQ((s0 + 1) * (s0 - 1), s0 * s0 - 1);
  EXPECT_EQ(s0 - s0, Dim(0));
  EXPECT_EQ(Dim(), Dim(0));
  EXPECT_NE(s0, s1);
}

TEST(Dim, ReadsAsPeopleWriteIt) {
  EXPECT_EQ(Dim(512).to_string(), "512");
  EXPECT_EQ(Dim(0).to_string(), "0");
  EXPECT_EQ((s0 * 512).to_string(), "512*s0");
  EXPECT_EQ((Dim(3) + s1 * s0 * 2).to_string(), "2*s0*s1 + 3");
  EXPECT_EQ((Dim(1) - s0).to_string(), "-s0 + 1");
  EXPECT_EQ((s0 * s0 - s1 * 4).to_string(), "s0*s0 - 4*s1");
  const std::vector<std::string> names{"batch"};
  EXPECT_EQ((s0 + s1).to_string(names), "batch + s1");
}

TEST(Dim, DivisionIsExactOrNothing) {
  EXPECT_EQ((s0 * 512).divided_by(512), s0);
  EXPECT_EQ((s0 * s0 - 1).divided_by(s0 + 1), s0 - 1);
  EXPECT_EQ((s0 * s1 * 6).divided_by(s1 * 2), s0 * 3);
  EXPECT_EQ(Dim(0).divided_by(s0), Dim(0));
  EXPECT_EQ((s0 * 3).divided_by(2), std::nullopt);
  EXPECT_EQ((s0 + 1).divided_by(s0), std::nullopt);
  EXPECT_EQ(s0.divided_by(0), std::nullopt);
}

TEST(Dim, EvaluationAgreesWithArithmeticOnRandomPolynomials) {
  std::mt19937 random(7);
  auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  auto polynomial = [&] {
    Dim sum = pick(-9, 9);
    for (int i = 0; i < 3; ++i) sum = sum + Dim::symbol(pick(0, 2)) * Dim::symbol(pick(0, 2)) * pick(-5, 5);
    return sum;
  };
  for (int trial = 0; trial < 500; ++trial) {
    const Dim a = polynomial(), b = polynomial();
    const std::vector<int64_t> values{pick(0, 50), pick(0, 50), pick(0, 50)};
    const int64_t x = *a.evaluate(values), y = *b.evaluate(values);
    EXPECT_EQ((a + b).evaluate(values), x + y);
    EXPECT_EQ((a - b).evaluate(values), x - y);
    EXPECT_EQ((a * b).evaluate(values), x * y);
    if (b == Dim(0)) continue;
    EXPECT_EQ((a * b).divided_by(b), a) << a.to_string() << " and " << b.to_string();
  }
}

TEST(Dim, EvaluationSaysNothingOnOverflowOrAMissingSymbol) {
  const std::vector<int64_t> values{int64_t{1} << 62};
  EXPECT_EQ((s0 * 4).evaluate(values), std::nullopt);
  EXPECT_EQ((s0 + s0).evaluate(values), std::nullopt);
  EXPECT_EQ(s1.evaluate(values), std::nullopt);
  EXPECT_EQ(s0.evaluate(values), values[0]);
}

TEST(Dim, WhatDoesNotFitBecomesTheOverflowedDimAndStaysIt) {
  const Dim huge = Dim(k_max - 1) * Dim(2);
  EXPECT_TRUE(huge.overflowed());
  EXPECT_TRUE((huge - huge).overflowed());
  EXPECT_TRUE((huge * 0).overflowed());
  EXPECT_EQ(huge.evaluate({}), std::nullopt);
  Dim power = s0;
  for (int i = 0; i < 20; ++i) power = power * s0;
  EXPECT_TRUE(power.overflowed());
  Dim wide;
  for (SymbolId id = 0; id < 100; ++id) wide = wide + Dim::symbol(id);
  EXPECT_TRUE(wide.overflowed());
  EXPECT_FALSE((Dim(std::numeric_limits<int64_t>::min())).divided_by(-1).has_value());
}

TEST(Dim, TermsInAnyOrderAreTheSameDim) {
  const Dim dim = Dim::from_terms({{{}, 3}, {{1, 0}, 2}, {{0}, 0}, {{0, 1}, 1}});
  EXPECT_EQ(dim, s0 * s1 * 3 + 3);
}

}  // namespace
}  // namespace kiln
