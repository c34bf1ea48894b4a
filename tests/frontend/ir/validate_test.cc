#include "frontend/ir/validate.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace kiln {
namespace {

Status check(Shape shape, std::vector<Dim> strides = {}, size_t symbols = 1) {
  return validate(TensorType{DType::f32, std::move(shape), std::move(strides)}, symbols);
}

TEST(Validate, OrdinaryTypesPass) {
  EXPECT_TRUE(check({}).ok());
  EXPECT_TRUE(check({512, 768}).ok());
  EXPECT_TRUE(check({Dim::symbol(0), 768}, {1, Dim::symbol(0)}).ok());
  EXPECT_TRUE(check({0, limits::k_tensor_elements}).ok());
  EXPECT_TRUE(check({4, 8}, {0, 1}).ok());
}

TEST(Validate, ARankBeyondTheLimitIsExhausted) {
  EXPECT_EQ(check(Shape(limits::k_tensor_rank + 1, 1)).message(), "rank is 17, the limit is 16");
  EXPECT_EQ(check(Shape(limits::k_tensor_rank + 1, 1)).code(), StatusCode::resource_exhausted);
}

TEST(Validate, ExtentsAreNeitherNegativeNorTooLarge) {
  EXPECT_EQ(check({-1}).message(), "extent is -1, expected at least 0");
  EXPECT_EQ(check({limits::k_tensor_elements + 1}).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(check({int64_t{1} << 30, int64_t{1} << 30}).code(), StatusCode::resource_exhausted);
}

TEST(Validate, SymbolsMustExist) { EXPECT_EQ(check({Dim::symbol(1)}).message(), "dim names symbol 1 of 1"); }

TEST(Validate, ThereIsOneStridePerDimension) {
  EXPECT_EQ(check({2, 3}, {1}).message(), "1 strides for rank 2");
  EXPECT_EQ(check({2, 3}, {-3, 1}).message(), "stride is -3, expected at least 0");
  EXPECT_EQ(check({2, 3}, {limits::k_tensor_elements, 1}).code(), StatusCode::resource_exhausted);
}

}  // namespace
}  // namespace kiln
