#include "jit/run/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace kiln {
namespace {

TEST(ArenaPool, BlocksInFlightDoNotOverlap) {
  auto a = ArenaPool::shared().acquire(1 << 20);
  auto b = ArenaPool::shared().acquire(1 << 20);
  std::memset(a.get(), 1, 1 << 20);
  std::memset(b.get(), 2, 1 << 20);
  EXPECT_EQ(a[0], 1);
  EXPECT_EQ(a[(1 << 20) - 1], 1);
  for (const auto* block : {&a, &b}) EXPECT_EQ(reinterpret_cast<uintptr_t>(block->get()) % (size_t{2} << 20), 0u);
}

TEST(ArenaPool, AReleasedBlockServesTheNextCall) {
  uint8_t* first = ArenaPool::shared().acquire(5 << 20).get();
  EXPECT_EQ(ArenaPool::shared().acquire(5 << 20).get(), first);
}

TEST(ArenaPool, ALargerBlockTakesThePlaceOfTheLargestKeptOne) {
  constexpr size_t k_bytes = size_t{64} << 20;
  ArenaPool::shared().acquire(k_bytes).reset();
  uint8_t* larger = ArenaPool::shared().acquire(k_bytes + 1).get();
  EXPECT_EQ(ArenaPool::shared().acquire(k_bytes).get(), larger);
}

/// (Of the blocks of two calls at once, how many are kept; how many after a thousand calls one after another).
std::pair<int64_t, int64_t> kept_of_two() {
  constexpr size_t k_bytes = size_t{6} << 20;
  auto one = ArenaPool::shared().acquire(k_bytes), other = ArenaPool::shared().acquire(k_bytes);
  uint8_t* const blocks[] = {one.get(), other.get()};
  one.reset();
  other.reset();
  const auto are_mapped = [&] {
    unsigned char resident = 0;
    return std::ranges::count_if(blocks, [&](uint8_t* block) { return mincore(block, 1, &resident) == 0; });
  };
  const int64_t before = are_mapped();
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(ArenaPool::shared().acquire(k_bytes));
  return {before, are_mapped()};
}

TEST(ArenaPool, WhatOnlyCallsAtOnceNeededIsGivenBackLater) {
  const auto [before, after] = kept_of_two();
  EXPECT_EQ(before, 2);
  EXPECT_LE(after, 1);
}

TEST(ArenaPool, AForkedChildKeepsNothingForItsParentsCalls) {
  const auto one = ArenaPool::shared().acquire(1), other = ArenaPool::shared().acquire(1);
  const pid_t child = fork();
  if (child == 0) _exit(static_cast<int>(kept_of_two().second));
  int status = -1;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_LE(WEXITSTATUS(status), 1);
}

TEST(ArenaPool, ManyThreadsMayShareIt) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        auto block = ArenaPool::shared().acquire(static_cast<size_t>(1 + i % 7) << 20);
        ASSERT_TRUE(block);
        block[0] = static_cast<uint8_t>(t);
        std::this_thread::yield();
        ASSERT_EQ(block[0], t);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace kiln
