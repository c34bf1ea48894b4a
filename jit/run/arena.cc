#include "jit/run/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "base/ceil_div.h"
#include "base/process_mutex.h"

namespace kiln {

namespace {
// A training step has a forward and a backward in flight one after another; nested or concurrent callers are
// rare.
constexpr size_t k_kept_blocks = 4;
// What is kept for calls at once is given back after so many acquisitions in which fewer were: two steps of a model of some layers.
constexpr size_t k_remembered_acquisitions = 64;
constexpr size_t k_huge_page_bytes = size_t{2} << 20;
// Smaller blocks come from the allocator's heap, whose pages are there already.
constexpr size_t k_advised_bytes = size_t{4} << 20;

/// Fresh pages from a multiple of huge pages on, so that the system can give huge ones from the first byte to the last: in small
/// ones, which may lie anywhere, a kernel's workspace seems to crowd some sets of the second-level cache. Null where there are none.
uint8_t* map_huge_pages(size_t bytes) {
  void* memory = mmap(nullptr, bytes + k_huge_page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<uint8_t*>(memory);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t before = round_up(address, k_huge_page_bytes) - address;
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
  size_t in_flight = 0, most_in_flight = 0, acquisitions = 0;
  uint32_t process = fork_depth();  // that the calls in flight are of

  /// The smallest that fits, else the largest, which a larger one is to replace: as many are kept as were in flight at once.
  Kept take(size_t bytes);
  /// The smallest, where there are more than `count`: the others serve whatever it could.
  Kept take_beyond(size_t count);
};

ArenaPool::State::Kept ArenaPool::State::take(size_t bytes) {
  if (process != fork_depth()) {  // this one is a forked child, which has no call yet
    process = fork_depth();
    in_flight = most_in_flight = 0;
  }
  most_in_flight = std::max(most_in_flight, ++in_flight);
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

ArenaPool::State::Kept ArenaPool::State::take_beyond(size_t count) {
  if (kept.size() <= count) return {nullptr, 0};
  const auto smallest = std::ranges::min_element(kept, {}, &Kept::bytes);
  const Kept found = *smallest;
  kept.erase(smallest);
  return found;
}

ArenaPool::ArenaPool() : m_state(new State) {}

ArenaPool& ArenaPool::shared() {
  static ArenaPool* pool = new ArenaPool;  // outlives every thread that may still release into it
  return *pool;
}

ArenaPool::Block ArenaPool::acquire(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1), k_huge_page_bytes);
  State::Kept kept{nullptr, 0};
  {
    const std::scoped_lock lock(process_mutex());
    kept = m_state->take(bytes);
  }
  if (kept.bytes >= bytes) return Block(kept.memory, Release{this, kept.bytes});
  if (kept.memory != nullptr) munmap(kept.memory, kept.bytes);
  uint8_t* memory = map_huge_pages(bytes);
  if (memory != nullptr) return Block(memory, Release{this, bytes});
  const std::scoped_lock lock(process_mutex());
  --m_state->in_flight;
  return Block(nullptr, Release{this, 0});
}

void ArenaPool::release(uint8_t* memory, size_t bytes) {
  State::Kept unwanted{nullptr, 0};
  {
    const std::scoped_lock lock(process_mutex());
    --m_state->in_flight;
    m_state->kept.push_back({memory, bytes});
    size_t count = k_kept_blocks;
    if (++m_state->acquisitions == k_remembered_acquisitions) {
      count = std::min(count, m_state->most_in_flight);
      m_state->acquisitions = 0;
      m_state->most_in_flight = m_state->in_flight;
    }
    unwanted = m_state->take_beyond(count);
  }
  if (unwanted.memory != nullptr) munmap(unwanted.memory, unwanted.bytes);
}

void advise_huge_pages(void* memory, size_t bytes) {
  if (bytes < k_advised_bytes) return;
  auto* const begin = static_cast<uint8_t*>(memory);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t first = round_up(address, k_huge_page_bytes) - address;
  const size_t last = bytes - (address + bytes) % k_huge_page_bytes;
  if (first < last) madvise(begin + first, last - first, MADV_HUGEPAGE);
}

}  // namespace kiln
