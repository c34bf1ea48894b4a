#include "jit/run/team_work.h"

#include <sched.h>

#include <algorithm>
#include <limits>
#include <new>

namespace kiln {

namespace {

// A range is given out in at most this many pieces: each costs the packing of operands anew.
constexpr uint64_t k_pieces = 8;
// About 50 µs: longer than threads of a quiet machine differ. Then whoever we wait for may need this core.
constexpr int k_spins_before_yield = 1000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

TeamWork::TeamWork(void* state, size_t launches, uint32_t team)
    : m_team(team), m_taken(static_cast<Word*>(state)), m_finished(m_taken + launches * team) {
  for (size_t i = 0; i < launches * (team + 1); ++i) new (m_taken + i) Word(0);
}

std::optional<TeamWork::Piece> TeamWork::take(size_t launch, uint32_t thread, uint64_t tasks) {
  for (uint32_t i = 0; i < m_team; ++i) {
    const uint32_t owner = (thread + i) % m_team;
    const uint64_t first = tasks * owner / m_team, last = tasks * (owner + 1) / m_team;
    if (auto piece = take_from(m_taken[launch * m_team + owner], first, last, i == 0)) return piece;
  }
  return std::nullopt;
}

std::optional<TeamWork::Piece> TeamWork::take_from(Word& taken, uint64_t first, uint64_t last, bool from_front) {
  const uint64_t size = last - first;
  uint64_t seen = taken.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t front = seen & std::numeric_limits<uint32_t>::max(), back = seen >> 32;
    const uint64_t left = size - front - back;
    if (left == 0) return std::nullopt;
    const uint64_t half = std::max((left + 1) / 2, (size + k_pieces - 1) / k_pieces);
    const uint64_t count = m_team == 1 ? left : std::min(left, half);
    // Only the split matters here; what tasks read was published by finish() of the launch before.
    if (!taken.compare_exchange_weak(seen, from_front ? seen + count : seen + (count << 32),
                                     std::memory_order_relaxed)) {
      continue;
    }
    if (from_front) return Piece{first + front, first + front + count};
    return Piece{last - back - count, last - back};
  }
}

void TeamWork::wait(size_t launch, uint64_t tasks) const {
  for (int spins = 0; m_finished[launch].load(std::memory_order_acquire) != tasks; ++spins) {
    spins < k_spins_before_yield ? relax() : static_cast<void>(sched_yield());
  }
}

}  // namespace kiln
