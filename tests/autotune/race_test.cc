#include "autotune/race.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace kiln {
namespace {

/// Entrants that take the given times on a machine that is as noisy as asked for.
class Track {
 public:
  explicit Track(std::vector<double> true_seconds, uint64_t seed = 1)
      : m_true(std::move(true_seconds)), m_random(seed) {}

  double noise = 0.03;          // of each sample, as a share
  double neighbour_share = 0;   // of samples, that take twice as long
  double noticed_share = 0.8;   // of those, that are known to be disturbed
  double uneven_share = 0;      // of those, whose repetitions differ widely
  size_t sensitive = SIZE_MAX;  // entrant that takes four times as long in those
  double crowd_seconds = 0;     // what others take of each sample on average, unnoticed
  std::vector<size_t> failing;  // entrants that crash
  uint32_t taken = 0;
  double taken_seconds = 0;

  Expected<TimeSample> sample(size_t index) {
    ++taken;
    if (std::ranges::find(failing, index) != failing.end()) return error(StatusCode::aborted, "candidate died");
    const bool is_slowed = m_share(m_random) < neighbour_share;
    const double slowdown = !is_slowed ? 1 : index == sensitive ? 4 : 2;
    const double seconds =
        m_true[index] * std::exp(noise * m_normal(m_random)) * slowdown + crowd_seconds * m_wait(m_random);
    taken_seconds += seconds;
    const bool was_disturbed = is_slowed && m_share(m_random) < noticed_share;
    const bool is_uneven = uneven_share > 0 && is_slowed && m_share(m_random) < uneven_share;
    return TimeSample{.seconds = seconds, .was_disturbed = was_disturbed, .spread = is_uneven ? 0.5 : 0.02};
  }

  Expected<size_t> run(std::vector<Entrant>& entrants) {
    entrants.resize(m_true.size());
    return race(entrants, [&](size_t index, double) { return sample(index); });
  }
  size_t winner() {
    std::vector<Entrant> entrants;
    return run(entrants).value();
  }

 private:
  std::vector<double> m_true;
  std::mt19937_64 m_random;
  std::normal_distribution<double> m_normal;
  std::uniform_real_distribution<double> m_share;
  std::exponential_distribution<double> m_wait;
};

std::vector<double> sixteen_with(size_t best, double seconds) {
  std::vector<double> times;
  for (size_t i = 0; i < 16; ++i) times.push_back(1.0 + 0.05 * static_cast<double>(i));
  times[best] = seconds;
  return times;
}

TEST(Race, the_fastest_wins) {
  for (uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(Track(sixteen_with(11, 0.8), seed).winner(), 11) << seed;
}

TEST(Race, a_bad_incumbent_is_replaced) {
  std::vector<double> times = sixteen_with(0, 3.0);
  for (uint64_t seed = 0; seed < 50; ++seed) EXPECT_LE(times[Track(times, seed).winner()], 1.1) << seed;
}

TEST(Race, the_incumbent_stays_where_nothing_is_gained) {
  size_t replaced = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Track track(std::vector<double>(16, 1.0), seed);
    track.noise = 0.01;
    replaced += track.winner() != 0;
  }
  EXPECT_LE(replaced, 4);
}

TEST(Race, a_neighbour_does_not_change_the_pick) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Track track(sixteen_with(7, 0.8), seed);
    track.neighbour_share = 0.2;
    EXPECT_EQ(track.winner(), 7) << seed;
  }
}

TEST(Race, a_sample_whose_repetitions_differ_widely_is_taken_again) {
  size_t lost = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Track track(sixteen_with(7, 0.8), seed);
    track.neighbour_share = 0.3;
    track.noticed_share = 0;
    track.uneven_share = 1;
    lost += track.winner() != 7;
  }
  EXPECT_LE(lost, 10);
}

TEST(Race, who_is_slow_beside_a_neighbour_alone_wins_where_there_seldom_is_one) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const double share : {0.2, 1.0}) {
      Track track({1.0, 0.8}, seed);
      track.sensitive = 1;
      track.neighbour_share = share;
      EXPECT_EQ(track.winner(), share < 1 ? 1 : 0) << seed;
    }
  }
}

TEST(Race, a_crowd_does_not_keep_a_bad_incumbent) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Track track(sixteen_with(0, 3.0), seed);
    track.crowd_seconds = 4;
    EXPECT_NE(track.winner(), 0) << seed;
  }
}

TEST(Race, who_fails_drops_out_and_says_why) {
  Track track(sixteen_with(5, 0.5));
  track.failing = {5};
  std::vector<Entrant> entrants;
  const auto winner = track.run(entrants);
  ASSERT_TRUE(winner.ok());
  EXPECT_NE(*winner, 5);
  EXPECT_EQ(entrants[5].status.code(), StatusCode::aborted);
  EXPECT_TRUE(entrants[5].seconds.empty());
}

TEST(Race, who_is_slower_drops_out_and_says_how_much) {
  Track track({1.0, 0.5, 2.0});
  std::vector<Entrant> entrants;
  ASSERT_EQ(track.run(entrants).value(), 1);
  EXPECT_EQ(entrants[0].why_dropped(), "") << "the incumbent stays to the end";
  EXPECT_EQ(entrants[1].why_dropped(), "");
  EXPECT_NEAR(entrants[2].slowness, 4, 1);
  EXPECT_NE(entrants[2].why_dropped(), "");
}

TEST(Race, an_incumbent_that_fails_is_an_error) {
  Track track(sixteen_with(5, 0.5));
  track.failing = {0};
  std::vector<Entrant> entrants;
  EXPECT_EQ(track.run(entrants).status().code(), StatusCode::aborted);
}

TEST(Race, slow_entrants_cost_little) {
  Track track(sixteen_with(3, 0.9));
  track.winner();
  EXPECT_LT(track.taken, 16 * 6);  // six turns of all
}

TEST(Race, equals_are_told_from_a_gain_within_few_turns) {
  uint32_t taken = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Track track({1.0, 1.0}, seed);
    track.noise = 0.01;
    track.winner();
    taken += track.taken;
  }
  EXPECT_LT(taken, 200 * 2 * 10);  // on average fewer than ten turns of both
}

TEST(Race, a_gain_that_does_not_count_is_told_within_few_turns) {
  uint32_t taken = 0, replaced = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Track track({1.0, 0.995}, seed);
    track.noise = 0.0035;  // of one sample: a ratio's is half a hundredth
    replaced += track.winner() != 0;
    taken += track.taken;
  }
  EXPECT_LT(taken, 200 * 2 * 10);
  EXPECT_LE(replaced, 4);
}

TEST(Race, a_gain_that_counts_is_seldom_missed) {
  size_t missed = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Track track({1.0, 0.98}, seed);
    track.noise = 0.007;
    missed += track.winner() == 0;
  }
  EXPECT_LE(missed, 6);
}

TEST(Race, the_best_of_several_close_challengers_is_found) {
  size_t lost = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<double> times{1.0, 0.97, 0.93, 0.96, 1.02};
    Track track(times, seed);
    track.noise = 0.02;
    lost += times[track.winner()] > 0.93 * 1.02;
  }
  EXPECT_LE(lost, 10);
}

TEST(Race, a_machine_that_is_never_quiet_has_few_samples_taken_again) {
  Track track(sixteen_with(7, 0.8));
  track.neighbour_share = track.noticed_share = 1;
  std::vector<Entrant> entrants;
  ASSERT_TRUE(track.run(entrants).ok());
  uint32_t disturbed = 0;
  for (const Entrant& entrant : entrants) disturbed += entrant.disturbed;
  EXPECT_EQ(disturbed, 3 + 2 + 1);
}

TEST(Race, who_dropped_out_before_is_not_sampled_and_the_winner_is_told_by_its_number_among_all) {
  Track track({1.0, 0.1, 0.5, 0.9});
  std::vector<Entrant> entrants(4);
  entrants[1] = {.description = "wrong", .seconds = {0.1}, .status = error(StatusCode::aborted, "wrong")};
  entrants[2].seconds = {0.001};  // of an earlier race
  std::vector<double> told;
  HostState host;
  const TakeSample take_sample = [&](size_t index, double) {
    EXPECT_NE(index, 1u);
    return track.sample(index);
  };
  const auto winner = race_alone(entrants, take_sample, [&](double seconds) { told.push_back(seconds); }, host);
  EXPECT_EQ(winner.value(), 2u);
  EXPECT_EQ(entrants[1].why_dropped(), "wrong");
  EXPECT_GT(*std::ranges::min_element(entrants[2].seconds), 0.1);
  EXPECT_TRUE(std::ranges::is_sorted(told, std::greater<>()));
  EXPECT_GT(host.processors, 0u);
}

TEST(Race, one_entrant_needs_no_race) {
  Track track({1.0});
  EXPECT_EQ(track.winner(), 0);
  EXPECT_EQ(track.taken, 1);
}

}  // namespace
}  // namespace kiln
