#include "frontend/ir/dtype.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

TEST(DType, EveryNameReadsBackAsItsType) {
  for (uint8_t i = 0; i < k_dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_string(to_string(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_string("float"), std::nullopt);
  EXPECT_EQ(dtype_from_string(""), std::nullopt);
}

TEST(DType, SizesAreThoseOfTheFramework) {
  EXPECT_EQ(size_of(DType::boolean), 1u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::i64), 8u);
}

TEST(DType, BooleanIsNeitherFloatingNorIntegral) {
  EXPECT_FALSE(is_floating(DType::boolean));
  EXPECT_FALSE(is_integral(DType::boolean));
  EXPECT_TRUE(is_integral(DType::u8));
  EXPECT_TRUE(is_floating(DType::bf16));
}

TEST(DType, HalfPrecisionAccumulatesInSingle) {
  EXPECT_EQ(accumulator_of(DType::f16), DType::f32);
  EXPECT_EQ(accumulator_of(DType::f64), DType::f64);
  EXPECT_EQ(accumulator_of(DType::boolean), DType::i64);
}

}  // namespace
}  // namespace kiln
