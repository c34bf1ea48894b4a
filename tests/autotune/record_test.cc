#include "autotune/record.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kiln {
namespace {

TuningRecord some_record() {
  return {"gemm_f32_64x64x64_nn",
          "a processor, 2 cores",
          {0.5, 2, 2, 0.01},
          1,
          {{"tile 8x48", "", {1, 0xff, 0}, {2.0, 2.2, 2.1}, 2.1, 0.05, 1, "", true},
           {"tile 14x32", "gemm_f32_64x96x64_nn", {2, 0xfe}, {1.0, 1.1, 1.05}, 1.05, 0.04, 0, "", true},
           {"tile 1x1", "", {}, {}, 0, 0, 0, "candidate died of signal 11", false}}};
}

TEST(TuningRecord, comes_back_as_it_was_written) {
  const TuningRecord record = some_record();
  const auto back = TuningRecord::parse(record.to_json());
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->to_json(), record.to_json());
  EXPECT_EQ(back->candidates[0].schedule, record.candidates[0].schedule);
  EXPECT_EQ(back->candidates[1].origin, "gemm_f32_64x96x64_nn");
  EXPECT_EQ(back->candidates[1].seconds, record.candidates[1].seconds);
  EXPECT_EQ(back->candidates[2].dropped, "candidate died of signal 11");
  EXPECT_DOUBLE_EQ(back->gain(), 2.0);
}

TEST(TuningRecord, a_damaged_one_is_refused) {
  const std::string whole = some_record().to_json();
  for (size_t size = 0; size < whole.size(); size += 7) {
    EXPECT_EQ(TuningRecord::parse(whole.substr(0, size)).status().code(), StatusCode::data_loss) << size;
  }
  std::string winner = whole;
  winner.replace(winner.find("\"winner\":1"), 10, "\"winner\":9");
  EXPECT_EQ(TuningRecord::parse(winner).status().code(), StatusCode::data_loss);
}

TEST(TuningRecord, one_of_another_version_is_told_apart) {
  std::string other = some_record().to_json();
  other.replace(other.find("\"version\":3"), 11, "\"version\":7");
  EXPECT_EQ(TuningRecord::parse(other).status().code(), StatusCode::unimplemented);
}

/// A record of these schedules, in the order of the race, with the samples of each; the winner is the first of them.
TuningRecord record_of(std::vector<std::pair<uint8_t, std::vector<double>>> samples, uint32_t winner = 0) {
  TuningRecord record{"gemm_f32_64x64x64_nn", "a processor, 2 cores", {}, winner, {}};
  for (auto& [schedule, seconds] : samples) {
    record.candidates.push_back(
        {.description = fmt::format("schedule {}", schedule), .schedule = {schedule}, .seconds = std::move(seconds)});
  }
  return record;
}

uint8_t pick_of(const TuningRecord& record) { return record.candidates[record.winner].schedule.front(); }

TEST(TuningRecord, two_that_are_merged_say_what_both_measured_in_either_order) {
  TuningRecord one = record_of({{1, {2.0, 2.1}}, {2, {1.9, 1.7}}}, 1),
               other = record_of({{1, {2.2}}, {3, {1.6, 1.8, 1.5}}}, 1);
  one.candidates[0].dropped = "it hung";
  one.candidates[0].disturbed = 2;
  const TuningRecord both = TuningRecord::merged(one, other);
  EXPECT_EQ(both.to_json(), TuningRecord::merged(other, one).to_json());
  ASSERT_EQ(both.candidates.size(), 3);
  const auto& shared = *std::ranges::find(both.candidates, std::vector<uint8_t>{1}, &TuningRecord::Candidate::schedule);
  EXPECT_EQ(shared.seconds, (std::vector<double>{2.0, 2.1, 2.2}));
  EXPECT_EQ(shared.median, 2.1);
  EXPECT_EQ(shared.disturbed, 2);
  EXPECT_EQ(shared.dropped, "") << "in one of them it ran to an end";
  EXPECT_EQ(pick_of(both), 3);
}

TEST(TuningRecord, of_two_states_of_the_machine_the_worse_is_kept) {
  TuningRecord one = record_of({{1, {2.0}}}), other = record_of({{1, {2.1}}});
  one.host = {.load = 3, .processors = 4, .threads = 1, .stolen = 0};
  other.host = {.load = 1, .processors = 2, .threads = 2, .stolen = 0.25};
  for (const TuningRecord& both : {TuningRecord::merged(one, other), TuningRecord::merged(other, one)}) {
    EXPECT_EQ(both.host.load, 3);
    EXPECT_EQ(both.host.processors, 2);
    EXPECT_EQ(both.host.threads, 1);
    EXPECT_EQ(both.host.stolen, 0.25);
  }
}

TEST(TuningRecord, what_is_merged_again_adds_nothing) {
  const TuningRecord one = record_of({{1, {2.0, 2.1}}, {2, {1.9, 1.7}}}, 1),
                     other = record_of({{1, {2.2}}, {3, {1.5}}}, 1);
  const TuningRecord both = TuningRecord::merged(one, other);
  for (const TuningRecord& known : {one, other, both}) {
    EXPECT_EQ(TuningRecord::merged(both, known).to_json(), both.to_json());
  }
}

TEST(TuningRecord, of_two_winners_the_clearly_faster_one_is_picked_else_the_one_that_was_sampled_more) {
  const TuningRecord slow = record_of({{1, {1.00, 1.01, 1.02}}});
  EXPECT_EQ(pick_of(TuningRecord::merged(slow, record_of({{2, {0.9}}}))), 2);
  EXPECT_EQ(pick_of(TuningRecord::merged(slow, record_of({{2, {0.99}}}))), 1);
  EXPECT_EQ(pick_of(TuningRecord::merged(slow, record_of({{1, {0.8}}, {2, {0.95}}}, 1))), 1)
      << "the other knew better of it";
  EXPECT_EQ(pick_of(TuningRecord::merged(slow, record_of({{2, {}}}))), 1) << "a winner that nothing raced against";
}

}  // namespace
}  // namespace kiln
