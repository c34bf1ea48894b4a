#include "jit/run/team_work.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kiln {
namespace {

/// Runs every launch's tasks on threads [0, present) of a team; how often each task ran.
std::vector<std::vector<int>> run(const std::vector<uint64_t>& launches, uint32_t team, uint32_t present) {
  std::vector<uint64_t> state(TeamWork::state_bytes(launches.size(), team) / sizeof(uint64_t), ~uint64_t{0});
  TeamWork work(state.data(), launches.size(), team);
  std::vector<std::vector<int>> runs;
  for (const uint64_t tasks : launches) runs.emplace_back(tasks);
  std::vector<std::jthread> threads;
  for (uint32_t thread = 0; thread < present; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t launch = 0; launch < launches.size(); ++launch) {
        while (const auto piece = work.take(launch, thread, launches[launch])) {
          // Every task of the launch before has run: its plain writes are visible here.
          if (launch > 0) {
            for (const int count : runs[launch - 1]) EXPECT_EQ(count, 1);
          }
          for (uint64_t task = piece->first; task < piece->last; ++task) ++runs[launch][task];
          work.finish(launch, piece->last - piece->first);
        }
        work.wait(launch, launches[launch]);
      }
    });
  }
  threads.clear();
  return runs;
}

void expect_each_once(const std::vector<std::vector<int>>& runs) {
  for (const auto& launch : runs) {
    for (const int count : launch) EXPECT_EQ(count, 1);
  }
}

TEST(TeamWork, RunsEachTaskOnceWhateverTheTeam) {
  const std::vector<uint64_t> launches{1, 2, 64, 3, 63, 1000, 1, 7};
  for (const uint32_t team : {1u, 2u, 3u, 5u, 16u}) expect_each_once(run(launches, team, team));
}

TEST(TeamWork, NeedsNoThreadToCome) {
  const std::vector<uint64_t> launches{64, 1, 9};
  expect_each_once(run(launches, 4, 1));
  expect_each_once(run(launches, 4, 3));
}

TEST(TeamWork, GivesAThreadThatIsAloneAllAtOnce) {
  std::vector<uint64_t> state(TeamWork::state_bytes(1, 1) / sizeof(uint64_t));
  TeamWork work(state.data(), 1, 1);
  const auto piece = work.take(0, 0, 64);
  ASSERT_TRUE(piece);
  EXPECT_EQ(piece->first, 0u);
  EXPECT_EQ(piece->last, 64u);
  EXPECT_FALSE(work.take(0, 0, 64));
}

TEST(TeamWork, GivesAThreadItsOwnRangeFirstAndInOrder) {
  std::vector<uint64_t> state(TeamWork::state_bytes(1, 2) / sizeof(uint64_t));
  TeamWork work(state.data(), 1, 2);
  uint64_t expected = 32;
  while (expected < 64) {
    const auto piece = work.take(0, 1, 64);
    ASSERT_TRUE(piece);
    EXPECT_EQ(piece->first, expected);
    expected = piece->last;
  }
  const auto stolen = work.take(0, 1, 64);
  ASSERT_TRUE(stolen);
  EXPECT_EQ(stolen->last, 32u);
}

}  // namespace
}  // namespace kiln
