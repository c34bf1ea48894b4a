#include "backends/reference/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "frontend/ops/scalar_math.h"

namespace kiln {
namespace {

double through(DType dtype, double x) {
  uint64_t memory = 0;
  store_number(dtype, &memory, 0, {x, 0});
  return load_number(dtype, &memory, 0).real;
}

TEST(Number, EveryHalfSurvivesARoundTrip) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto pattern = static_cast<uint16_t>(bits);
      const Number value = load_number(dtype, &pattern, 0);
      uint16_t back = 0;
      store_number(dtype, &back, 0, value);
      if (std::isnan(value.real)) {
        EXPECT_TRUE(std::isnan(load_number(dtype, &back, 0).real));
      } else {
        ASSERT_EQ(back, pattern);
      }
    }
  }
}

TEST(Number, HalvesRoundToNearestEven) {
  EXPECT_EQ(through(DType::f16, 2049), 2048);  // between 2048 and 2050
  EXPECT_EQ(through(DType::f16, 2051), 2052);
  EXPECT_EQ(through(DType::f16, 65519), 65504);
  EXPECT_EQ(through(DType::f16, 65520), INFINITY);
  EXPECT_EQ(through(DType::f16, -std::ldexp(1, -25)), 0);
  EXPECT_EQ(through(DType::bf16, 257), 256);
  EXPECT_EQ(through(DType::bf16, 259), 260);
}

TEST(Number, IntegersWrapAndDivideTowardsMinusInfinity) {
  EXPECT_EQ(apply(ScalarOp::add, DType::i8, {0, 127}, {0, 1}, {}).integer, -128);
  EXPECT_EQ(apply(ScalarOp::floor_div, DType::i64, {0, -7}, {0, 2}, {}).integer, -4);
  EXPECT_EQ(apply(ScalarOp::remainder, DType::i64, {0, -7}, {0, 2}, {}).integer, 1);
  EXPECT_EQ(apply(ScalarOp::fmod, DType::i64, {0, -7}, {0, 2}, {}).integer, -1);
  EXPECT_EQ(apply(ScalarOp::floor_div, DType::i64, {0, 5}, {0, 0}, {}).integer, 0);
  EXPECT_EQ(apply(ScalarOp::floor_div, DType::i64, {0, INT64_MIN}, {0, -1}, {}).integer, INT64_MIN);
}

TEST(Number, NanWinsInMaximumAndMinimum) {
  EXPECT_TRUE(std::isnan(apply(ScalarOp::maximum, DType::f32, {NAN, 0}, {1, 0}, {}).real));
  EXPECT_TRUE(std::isnan(apply(ScalarOp::minimum, DType::f32, {1, 0}, {NAN, 0}, {}).real));
  EXPECT_TRUE(std::isnan(combine(Combiner::maximum, DType::f32, identity_of(Combiner::maximum), {NAN, 0}).real));
}

TEST(Number, CastsOfWhatNoIntegerHoldsGiveTheLeast) {
  for (const double x : {-HUGE_VAL, HUGE_VAL, double{NAN}, 1e30, -1e30}) {
    for (const auto& [to, least] :
         {std::pair{DType::i64, INT64_MIN}, {DType::i32, int64_t{INT32_MIN}}, {DType::i8, 0}}) {
      EXPECT_EQ(cast_number({x, 0}, DType::f32, to).integer, least);
      EXPECT_EQ(apply_scalar(ScalarOp::cast, DType::f32, to, x, 0, 0), static_cast<double>(least));
    }
  }
  EXPECT_EQ(cast_number({3e9, 0}, DType::f64, DType::i32).integer, INT32_MIN);
  EXPECT_EQ(apply_scalar(ScalarOp::cast, DType::f64, DType::i32, 3e9, 0, 0), INT32_MIN);
}

TEST(Number, CastsTruncateAndCompareWithZero) {
  EXPECT_EQ(cast_number({-1.75, 0}, DType::f32, DType::i32).integer, -1);
  EXPECT_EQ(cast_number({0.25, 0}, DType::f32, DType::boolean).integer, 1);
  EXPECT_EQ(cast_number({0.1, 0}, DType::f64, DType::f32).real, static_cast<double>(0.1F));
  EXPECT_EQ(cast_number({0, 300}, DType::i64, DType::u8).integer, 44);
}

}  // namespace
}  // namespace kiln
