#include "jit/run/sized_numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "jit/run/program.h"
#include "jit/run/program_generated.h"

namespace kiln {
namespace {

constexpr uint32_t k_no_place = UINT32_MAX;

/// A program of one input of f32[s0, 3], for sizes of 2 to 15. `before_end`: where its number is said to be; without one, where the
/// input's first extent is.
std::vector<uint8_t> program_for(int64_t size, uint32_t before_end = k_no_place, uint32_t symbol = 0) {
  flatbuffers::FlatBufferBuilder b;
  const std::vector<int64_t> dims = {size, 3};
  const auto stored_dims = b.CreateVector(dims);
  // A vector begins with its length, of 4 bytes.
  const uint32_t place = before_end == k_no_place ? stored_dims.o - 4 : before_end;
  const std::vector<flatbuffers::Offset<fb::Tensor>> inputs = {fb::CreateTensor(b, 0, stored_dims)};
  const auto stored_inputs = b.CreateVector(inputs);
  const std::vector<fb::SizeRange> ranges = {{2, 15}};
  const auto stored_ranges = b.CreateVectorOfStructs(ranges);
  const std::vector<uint32_t> symbols = {symbol};
  const std::vector<flatbuffers::Offset<fb::Term>> terms = {fb::CreateTerm(b, 1, b.CreateVector(symbols))};
  const std::vector<flatbuffers::Offset<fb::SizedNumber>> numbers = {
      fb::CreateSizedNumber(b, place, b.CreateVector(terms))};
  const auto stored_numbers = b.CreateVector(numbers);
  b.Finish(fb::CreateProgram(b, k_program_version, 0, 0, 0, 0, stored_inputs, 0, 0, 0, 0, 0, false, stored_ranges,
                             stored_numbers));
  return {b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize()};
}

TEST(SizedNumbersTest, a_copy_for_other_sizes_differs_in_numbers) {
  const auto resized = resized_program(program_for(2), std::vector<int64_t>{11});
  ASSERT_TRUE(resized.ok()) << resized.status().to_string();
  EXPECT_EQ(*resized, program_for(11));
}

TEST(SizedNumbersTest, sizes_that_are_not_served_are_refused) {
  const auto program = program_for(2);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {16}, {-3}, {2, 2}}) {
    EXPECT_EQ(resized_program(program, sizes).status().code(), StatusCode::failed_precondition) << sizes.front();
  }
}

TEST(SizedNumbersTest, numbers_outside_the_bytes_and_unknown_symbols_are_refused) {
  const std::vector<int64_t> sizes = {5};
  const auto bytes = static_cast<uint32_t>(program_for(2).size());
  for (const uint32_t place : {0U, 7U, bytes + 1, UINT32_MAX - 1}) {
    EXPECT_EQ(resized_program(program_for(2, place), sizes).status().code(), StatusCode::data_loss) << place;
  }
  EXPECT_EQ(resized_program(program_for(2, k_no_place, 1), sizes).status().code(), StatusCode::data_loss);
}

TEST(SizedNumbersTest, damaged_bytes_are_refused_or_harmless) {
  const auto good = program_for(2);
  std::mt19937 random(3);
  size_t refused = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    auto bytes = good;
    bytes[random() % bytes.size()] = static_cast<uint8_t>(random());
    refused += resized_program(bytes, std::vector<int64_t>{5}).ok() ? 0 : 1;
    refused += resized_plan(bytes, std::vector<int64_t>{5}).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 1'000U);
}

}  // namespace
}  // namespace kiln
