#include "backends/schedule_bytes.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

enum class Way : uint8_t { one = 1, other = 2 };

struct Choices {
  static constexpr std::string_view k_implementation = "some_way";
  static constexpr uint32_t k_version = 3;
  bool flag = false;
  Way way = Way::one;
  uint32_t tile = 0;
  bool operator==(const Choices&) const = default;
  static auto fields(auto& s) { return std::tie(s.flag, s.way, s.tile); }
};

const Choices k_choices{true, Way::other, 70000};

std::string refusal(std::span<const uint8_t> bytes) {
  const auto parsed = parse_choices<Choices>(bytes);
  EXPECT_EQ(parsed.status().code(), StatusCode::invalid_argument);
  return std::string(parsed.status().message());
}

TEST(ScheduleBytes, are_what_they_are_documented_to_be) {
  std::vector<uint8_t> expected{8, 0, 0, 0, 's', 'o', 'm', 'e', '_', 'w', 'a', 'y', 3, 0, 0, 0, 1, 2, 0x70, 0x11, 1, 0};
  EXPECT_EQ(encode_choices(k_choices), expected);
  EXPECT_EQ(open_schedule(expected)->implementation, "some_way");
}

TEST(ScheduleBytes, give_the_choices_back) {
  const auto parsed = parse_choices<Choices>(encode_choices(k_choices));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, k_choices);
}

TEST(ScheduleBytes, cut_off_or_longer_ones_are_refused) {
  std::vector<uint8_t> bytes = encode_choices(k_choices);
  for (size_t size = 0; size < bytes.size(); ++size) refusal(std::span(bytes).first(size));
  bytes.push_back(0);
  EXPECT_EQ(refusal(bytes), "schedule of some_way: 7 bytes of fields, expected 6");
}

TEST(ScheduleBytes, another_version_implementation_or_truth_value_is_refused_by_name) {
  const std::vector<uint8_t> good = encode_choices(k_choices);
  std::vector<uint8_t> newer = good, other = good, unnamed = good, vague = good;
  newer[12] = 4;
  other[4] = 't';
  unnamed[4] = '\n';
  vague[16] = 2;
  EXPECT_EQ(refusal(newer), "schedule of some_way: version 4, expected 3");
  EXPECT_EQ(refusal(other), "schedule of tome_way, expected one of some_way");
  EXPECT_EQ(refusal(unnamed), "schedule: no name of an implementation");
  EXPECT_EQ(refusal(vague), "schedule of some_way: a truth value above 1");
}

}  // namespace
}  // namespace kiln
