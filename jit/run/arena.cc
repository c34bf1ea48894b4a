#include "jit/run/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "base/process_mutex.h"

namespace kiln {

namespace {
// A training step has a forward and a backward in flight one after another; nested or concurrent callers are
// rare.
constexpr size_t k_kept_blocks = 4;
constexpr size_t k_huge_page_bytes = size_t{2} << 20;
// Smaller blocks come from the allocator's heap, whose pages are there already.
constexpr size_t k_advised_bytes = size_t{4} << 20;

constexpr size_t up_to_huge_page(size_t bytes) {
  return (bytes + k_huge_page_bytes - 1) / k_huge_page_bytes * k_huge_page_bytes;
}

/// Fresh pages from a multiple of huge pages on, so that the system can give huge ones from the first byte to the last: in small
/// ones, which may lie anywhere, a kernel's workspace seems to crowd some sets of the second-level cache. Null where there are none.
uint8_t* map_huge_pages(size_t bytes) {
  void* memory = mmap(nullptr, bytes + k_huge_page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<uint8_t*>(memory);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t before = up_to_huge_page(address) - address;
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, k_huge_page_bytes - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);  // advice: refusal is harmless
  return begin + before;
}

}  // namespace

struct ArenaPool::State {
  struct Kept {
    uint8_t* memory;
    size_t bytes;
  };
  std::vector<Kept> kept;

  /// The smallest that fits, else the largest, which a larger one is to replace: as many are kept as were in flight at once.
  Kept take(size_t bytes);
};

ArenaPool::State::Kept ArenaPool::State::take(size_t bytes) {
  const std::scoped_lock lock(process_mutex());
  if (kept.empty()) return {nullptr, 0};
  const auto is_better = [&](const Kept& a, const Kept& b) {
    const bool fits_a = a.bytes >= bytes, fits_b = b.bytes >= bytes;
    if (fits_a != fits_b) return fits_a;
    return fits_a ? a.bytes < b.bytes : a.bytes > b.bytes;
  };
  const auto best = std::min_element(kept.begin(), kept.end(), is_better);
  const Kept found = *best;
  kept.erase(best);
  return found;
}

ArenaPool::ArenaPool() : m_state(new State) {}

ArenaPool& ArenaPool::shared() {
  static ArenaPool* pool = new ArenaPool;  // outlives every thread that may still release into it
  return *pool;
}

ArenaPool::Block ArenaPool::acquire(size_t bytes) {
  bytes = up_to_huge_page(std::max<size_t>(bytes, 1));
  const State::Kept kept = m_state->take(bytes);
  if (kept.bytes >= bytes) return Block(kept.memory, Release{this, kept.bytes});
  if (kept.memory != nullptr) munmap(kept.memory, kept.bytes);
  uint8_t* memory = map_huge_pages(bytes);
  return Block(memory, Release{this, memory == nullptr ? 0 : bytes});
}

void ArenaPool::release(uint8_t* memory, size_t bytes) {
  State::Kept unwanted{memory, bytes};
  {
    const std::scoped_lock lock(process_mutex());
    m_state->kept.push_back(unwanted);
    if (m_state->kept.size() <= k_kept_blocks) return;
    // Give up the smallest: the others serve whatever it could.
    auto smallest = std::min_element(m_state->kept.begin(), m_state->kept.end(),
                                     [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    unwanted = *smallest;
    m_state->kept.erase(smallest);
  }
  munmap(unwanted.memory, unwanted.bytes);
}

void advise_huge_pages(void* memory, size_t bytes) {
  if (bytes < k_advised_bytes) return;
  auto* const begin = static_cast<uint8_t*>(memory);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t first = up_to_huge_page(address) - address;
  const size_t last = bytes - (address + bytes) % k_huge_page_bytes;
  if (first < last) madvise(begin + first, last - first, MADV_HUGEPAGE);
}

}  // namespace kiln
