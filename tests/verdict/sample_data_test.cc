#include "verdict/sample_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "frontend/ops/tensor.h"

namespace kiln {
namespace {

std::vector<double> filled(const KernelSpec& spec, uint32_t buffer, uint64_t seed = 17,
                           Situation situation = Situation::plain) {
  const BufferSpec& form = spec.buffers[buffer];
  std::vector<uint8_t> bytes(form.bytes());
  EXPECT_TRUE(SampleData(spec, seed, situation).fill(buffer, bytes).ok());
  std::vector<double> values;
  for (int64_t i = 0; i < form.elements; ++i) {
    values.push_back(load_element(form.dtype, reinterpret_cast<const std::byte*>(bytes.data()), i));
  }
  return values;
}

KernelSpec spec_of(DType dtype, int64_t elements) { return {{{dtype, elements, BufferRole::input}}, LoopsSpec{}}; }

/// out[i] = table[index[i]]: the values of buffer 0 address buffer 1 of `rows` elements, once they are integers.
KernelSpec gather_spec(int64_t rows, int64_t count, DType index = DType::i64) {
  LoopsSpec loops{{count}, 1, {}, {}, {}};
  loops.body.accesses = {{0, 0, {1}, {}}, {1, 0, {0}, {{2, 1, rows}}}, {2, 0, {1}, {}}};
  loops.body.exprs = {{ScalarOp::load, index}, {ScalarOp::load, DType::f32}, {ScalarOp::cast, DType::i64, {0}}};
  loops.body.exprs[1].slot = 1;
  loops.stages = {{false, {}, {{1, 2, StoreMode::assign}}}};
  return {{{index, count, BufferRole::input},
           {DType::f32, rows, BufferRole::input},
           {DType::f32, count, BufferRole::output}},
          loops};
}

TEST(SampleData, FloatsAreNormalWithBothSigns) {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    const auto values = filled(spec_of(dtype, 200'003), 0);
    double sum = 0, squares = 0;
    int64_t negative = 0;
    for (double value : values) {
      sum += value, squares += value * value;
      negative += value < 0;
    }
    const auto count = static_cast<double>(values.size());
    EXPECT_NEAR(sum / count, 0, 0.02) << to_string(dtype);
    EXPECT_NEAR(squares / count, 1, 0.03) << to_string(dtype);
    EXPECT_NEAR(static_cast<double>(negative) / count, 0.5, 0.02) << to_string(dtype);
  }
}

TEST(SampleData, EqualSeedsGiveEqualBytesAndOthersDiffer) {
  const KernelSpec spec = gather_spec(7, 100'000);
  for (uint32_t buffer : {0U, 1U}) {
    EXPECT_EQ(filled(spec, buffer, 3), filled(spec, buffer, 3));
    EXPECT_NE(filled(spec, buffer, 3), filled(spec, buffer, 4));
  }
}

TEST(SampleData, NoRowRepeatsBeforeThePoolEndsAndThenItBeginsAgain) {
  constexpr int64_t k_pool = SamplePool::k_bytes / sizeof(float);
  const auto values = filled(spec_of(DType::f32, k_pool + 2'000), 0);
  EXPECT_TRUE(std::equal(values.begin(), values.begin() + 1'000, values.begin() + k_pool));
  for (int64_t row : {1, 64, 768, 1'024, 3'072, 50'257, 512 * 1'024}) {
    EXPECT_FALSE(std::equal(values.begin(), values.begin() + 8, values.begin() + row)) << row;
  }
}

TEST(SampleData, IndicesStayInsideTheBoundTheyAreCheckedAgainst) {
  for (int64_t rows : {1, 2, 50'257}) {
    const auto indices = filled(gather_spec(rows, 70'000), 0);
    const auto [low, high] = std::ranges::minmax_element(indices);
    EXPECT_EQ(*low, 0);
    EXPECT_GE(*high, static_cast<double>(rows - 1) * 0.99);
    EXPECT_LT(*high, static_cast<double>(rows));
  }
}

TEST(SampleData, FloatsThatIndicesAreMadeOfStayInsideTheBoundToo) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (int64_t rows : {1, 2, 50'257}) {
      const KernelSpec spec = gather_spec(rows, 70'000, dtype);
      EXPECT_FALSE(SampleData(spec, 17).has_source(0));
      const auto positions = filled(spec, 0);
      const auto [low, high] = std::ranges::minmax_element(positions);
      EXPECT_GE(*low, 0);
      EXPECT_GE(*high, static_cast<double>(rows) * 0.8);
      EXPECT_LT(*high, static_cast<double>(rows) - 0.12);
      EXPECT_TRUE(SampleData(spec, 17, Situation::negative_index).has_bad_index());
    }
  }
}

TEST(SampleData, TheLastWindowsHoldFloatsThatStayValidWhenTheyAreScaledAroundTheMiddle) {
  const auto [low, high] = std::end(k_index_windows)[-1].positions(50'257);
  EXPECT_EQ(low, 0);
  EXPECT_LT(high, 0.125);
  const auto [first, last] = std::end(k_index_windows)[-2].positions(50'257);
  EXPECT_EQ(first, 0);
  EXPECT_GT(last, 0.25);
}

TEST(SampleData, HarshNumbersMayLieAtAnyAddress) {
  const KernelSpec spec = spec_of(DType::f32, 10'000);
  for (const auto& [situation, misalignment] :
       {std::pair(Situation::harsh, sizeof(float)), std::pair(Situation::harsh_aligned, size_t{0})}) {
    EXPECT_EQ(SampleData(spec, 17, situation).misalignment(0), misalignment);
    const auto values = filled(spec, 0, 17, situation);
    EXPECT_TRUE(std::ranges::any_of(values, [](double value) { return std::isnan(value); }));
    EXPECT_TRUE(std::ranges::any_of(values, [](double value) { return std::isinf(value); }));
  }
}

TEST(SampleData, OtherIntegersHaveBothSignsAndBooleansAreFair) {
  const auto integers = filled(spec_of(DType::i32, 10'000), 0);
  EXPECT_EQ(std::ranges::min(integers), -100);
  EXPECT_EQ(std::ranges::max(integers), 100);
  const auto truths = filled(spec_of(DType::boolean, 10'000), 0);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(truths, 1.0)), 5'000, 300);
  EXPECT_EQ(std::ranges::count(truths, 1.0) + std::ranges::count(truths, 0.0), 10'000);
}

TEST(Poison, IsFoundWhereverItStandsAndNowhereElse) {
  for (DType dtype : {DType::boolean, DType::i8, DType::bf16, DType::f32, DType::i32, DType::i64, DType::f64}) {
    const size_t size = size_of(dtype);
    std::vector<uint8_t> bytes(9'001 * size);
    ASSERT_TRUE(SampleData(spec_of(dtype, 9'001), 5).fill(0, bytes).ok());
    if (dtype == DType::i8) std::ranges::replace(bytes, uint8_t{0xa5}, uint8_t{1});  // -91 is a value like others there
    EXPECT_EQ(find_poison(dtype, bytes), -1) << to_string(dtype);
    for (size_t element : {9'000, 8'191, 2'048, 1, 0}) {
      poison(dtype, std::span(bytes).subspan(element * size, size));
      EXPECT_EQ(find_poison(dtype, bytes), static_cast<int64_t>(element)) << to_string(dtype);
    }
  }
}

TEST(Poison, AComputedNanIsNotPoison) {
  std::vector<float> values(64, std::nanf(""));
  values[3] = -std::nanf("");
  values[4] = 0.0f / std::vector<float>(1)[0];
  EXPECT_EQ(find_poison(DType::f32, {reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4}), -1);
}

}  // namespace
}  // namespace kiln
