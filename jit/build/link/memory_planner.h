#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kiln {

/// A buffer of `bytes` that must keep its contents from step `first` to step `last`, both included.
struct Lifetime {
  uint64_t bytes = 0;
  uint32_t first = 0;
  uint32_t last = 0;
};

struct MemoryPlan {
  std::vector<uint64_t> offsets;  // one per lifetime, 64-byte aligned
  uint64_t total_bytes = 0;
};

/// Places buffers in one arena so that those alive at the same step do not overlap: greedy by size, each at
/// the lowest gap that fits (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
/// 2020, arXiv 2001.03288, algorithm 3). Deterministic. Quadratic in the worst case; graphs have hundreds of
/// buffers.
MemoryPlan plan_memory(std::span<const Lifetime> lifetimes);

}  // namespace kiln
