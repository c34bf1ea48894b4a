#include "backends/host_rate.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

namespace kiln {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t k_rounds = 2'000'000;  // of a loop of multiply-adds: some milliseconds
constexpr int k_repeats = 25;

}  // namespace

double best_rate(uint32_t threads, double work, const std::function<void(uint32_t)>& call) {
  double best = 0;
  for (int i = 0; i < k_repeats; ++i) {
    Clock::time_point start;
    std::barrier begin(threads, [&]() noexcept { start = Clock::now(); });
    {
      std::vector<std::jthread> team;
      for (uint32_t t = 0; t < threads; ++t) {
        team.emplace_back([&, t] {
          begin.arrive_and_wait();
          call(t);
        });
      }
    }
    best = std::max(best, threads * work / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

double best_rate(uint32_t threads, const HostLoop& loop) {
  return best_rate(threads, loop.operations * static_cast<double>(k_rounds), [&](uint32_t) { loop.run(k_rounds); });
}

}  // namespace kiln
