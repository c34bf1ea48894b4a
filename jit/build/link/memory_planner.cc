#include "jit/build/link/memory_planner.h"

#include <algorithm>
#include <numeric>

#include "base/ceil_div.h"

namespace kiln {

namespace {
constexpr uint64_t k_alignment_bytes = 64;  // a cache line, and a 512-bit vector
}

MemoryPlan plan_memory(std::span<const Lifetime> lifetimes) {
  MemoryPlan plan;
  plan.offsets.resize(lifetimes.size());
  std::vector<size_t> by_size(lifetimes.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });

  std::vector<size_t> placed;  // by ascending offset
  for (size_t index : by_size) {
    const Lifetime& wanted = lifetimes[index];
    const uint64_t bytes = round_up(wanted.bytes, k_alignment_bytes);
    uint64_t offset = 0;
    for (size_t other : placed) {
      const Lifetime& taken = lifetimes[other];
      if (taken.last < wanted.first || wanted.last < taken.first) continue;
      if (offset + bytes <= plan.offsets[other]) break;  // the gap before `other` fits
      offset = std::max(offset, plan.offsets[other] + round_up(taken.bytes, k_alignment_bytes));
    }
    plan.offsets[index] = offset;
    plan.total_bytes = std::max(plan.total_bytes, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), index,
                                   [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; }),
                  index);
  }
  return plan;
}

}  // namespace kiln
