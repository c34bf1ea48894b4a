#include "jit/build/link/memory_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kiln {
namespace {

bool overlap_in_time(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

TEST(MemoryPlanner, BuffersAliveTogetherDoNotShareBytes) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Lifetime> lifetimes(random() % 40);
    for (Lifetime& lifetime : lifetimes) {
      lifetime.bytes = random() % 1000;
      lifetime.first = random() % 30;
      lifetime.last = lifetime.first + random() % 8;
    }
    const MemoryPlan plan = plan_memory(lifetimes);
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      EXPECT_EQ(plan.offsets[i] % 64, 0u);
      EXPECT_LE(plan.offsets[i] + lifetimes[i].bytes, plan.total_bytes);
      for (size_t j = 0; j < i; ++j) {
        if (!overlap_in_time(lifetimes[i], lifetimes[j])) continue;
        const bool apart = plan.offsets[i] + lifetimes[i].bytes <= plan.offsets[j] ||
                           plan.offsets[j] + lifetimes[j].bytes <= plan.offsets[i];
        EXPECT_TRUE(apart || lifetimes[i].bytes == 0 || lifetimes[j].bytes == 0) << i << " and " << j;
      }
    }
  }
}

TEST(MemoryPlanner, AChainNeedsTwoBuffersHoweverLong) {
  std::vector<Lifetime> chain;
  for (uint32_t step = 0; step < 100; ++step) chain.push_back({4096, step, step + 1});
  EXPECT_EQ(plan_memory(chain).total_bytes, 2u * 4096);
}

TEST(MemoryPlanner, NothingNeedsNothing) { EXPECT_EQ(plan_memory({}).total_bytes, 0u); }

}  // namespace
}  // namespace kiln
