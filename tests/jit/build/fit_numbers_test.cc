#include "jit/build/many_sizes/fit_numbers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "jit/resolve/size_ranges.h"

namespace kiln {
namespace {

using Number = std::function<int64_t(const Sizes&)>;

std::vector<std::vector<uint8_t>> bytes_for(std::span<const Sizes> sizes, const std::vector<Number>& numbers) {
  std::vector<std::vector<uint8_t>> samples;
  for (const Sizes& each : sizes) {
    auto& bytes = samples.emplace_back(numbers.size() * sizeof(int64_t));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const int64_t value = numbers[i](each);
      std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    }
  }
  return samples;
}

Expected<std::vector<SizedNumber>> fit(const std::vector<Sizes>& sizes, const std::vector<Number>& numbers) {
  return fit_numbers(sizes, bytes_for(sizes, numbers));
}

TEST(FitNumbersTest, polynomials_are_found_and_hold_for_sizes_that_were_no_samples) {
  const std::vector<SizeRange> ranges = ranges_around(Sizes{5, 300}, 4);
  const std::vector<Number> numbers = {
      [](const Sizes& s) { return 7 + 0 * s[0]; },
      [](const Sizes& s) { return s[1]; },
      [](const Sizes& s) { return 768 * s[0] * s[1] * s[1]; },
      [](const Sizes& s) { return s[0] * s[1] - 3 * s[1] + 64; },
      [](const Sizes& s) { return 12 * (s[0] + s[1]) * s[1] - 5 * s[0] * s[0]; },
  };
  const auto found = fit(sample_sizes(ranges), numbers);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 4);
  for (const Sizes& sizes : {Sizes{2, 16}, Sizes{7, 211}, Sizes{13, 100}, Sizes{15, 255}}) {
    for (const SizedNumber& number : *found) {
      const size_t index = numbers.size() - number.before_end / sizeof(int64_t);
      EXPECT_EQ(number.value.evaluate(sizes), numbers[index](sizes)) << index << " of " << sizes[0] << ", " << sizes[1];
    }
  }
}

TEST(FitNumbersTest, what_no_polynomial_says_is_refused) {
  const std::vector<Sizes> sizes = sample_sizes(ranges_around(Sizes{100}, 2));
  EXPECT_TRUE(fit(sizes, {[](const Sizes& s) { return s[0] + 1; }}).ok());
  EXPECT_FALSE(fit(sizes, {[](const Sizes& s) { return (s[0] + 15) / 16; }}).ok()) << "a number of tiles";
  EXPECT_FALSE(fit(sizes, {[](const Sizes& s) { return s[0] < 128 ? 1 : 2; }}).ok()) << "a choice";
  EXPECT_FALSE(fit(sizes, {[](const Sizes& s) { return s[0] % 2; }}).ok()) << "a remainder";
}

TEST(FitNumbersTest, bytes_of_several_lengths_are_refused) {
  const std::vector<Sizes> sizes = {{2}, {3}};
  const std::vector<std::vector<uint8_t>> samples = {std::vector<uint8_t>(8), std::vector<uint8_t>(16)};
  EXPECT_FALSE(fit_numbers(sizes, samples).ok());
}

TEST(SampleSizesTest, corners_come_first_and_few_sizes_are_all_taken) {
  const auto samples = sample_sizes(std::vector<SizeRange>{{2, 15}, {16, 255}});
  EXPECT_EQ(samples[0], (Sizes{15, 255}));
  EXPECT_EQ(samples[1], (Sizes{2, 16}));
  EXPECT_NE(std::ranges::find(samples, Sizes{15, 16}), samples.end());
  EXPECT_NE(std::ranges::find(samples, Sizes{2, 255}), samples.end());
  EXPECT_GE(samples.size(), sum_terms(2) + 4);
  EXPECT_EQ(sample_sizes(std::vector<SizeRange>{{2, 3}, {1, 1}}).size(), 2);
  EXPECT_EQ(sample_sizes(std::vector<SizeRange>{{4, 7}}).size(), 4);
}

TEST(SizeRangesTest, ranges_hold_their_size_and_are_the_same_for_all_they_hold) {
  for (const uint32_t doublings : k_range_doublings) {
    for (const int64_t size : {0, 1, 2, 3, 4, 15, 16, 17, 255, 256, 4096, 1 << 30}) {
      const SizeRange range = ranges_around(Sizes{size}, doublings).front();
      EXPECT_LE(range.first, size);
      EXPECT_GE(range.last, size);
      EXPECT_EQ(ranges_around(Sizes{range.first}, doublings).front(), range);
      EXPECT_EQ(ranges_around(Sizes{range.last}, doublings).front(), range);
    }
  }
  EXPECT_EQ(ranges_around(Sizes{1}, 4).front(), (SizeRange{1, 1}));
  EXPECT_EQ(ranges_around(Sizes{2}, 4).front(), (SizeRange{2, 15}));
  EXPECT_EQ(ranges_around(Sizes{INT64_MAX}, 4).front().last, INT64_MAX);
}

}  // namespace
}  // namespace kiln
