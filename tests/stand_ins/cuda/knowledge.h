#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kiln::cuda_emulator {

/// Who does things in a block: its threads, its warps (for what a warp does as one, such as wgmma), its mbarriers (for
/// what bulk copies write). Each counts its own moments.
using Agent = uint32_t;

/// A vector clock: for each agent the last moment that is known to have passed.
/// Source: Mattern, "Virtual time and global states of distributed systems", 1989; used as in FastTrack (Flanagan and
/// Freund, PLDI 2009).
class VectorClock {
 public:
  uint32_t operator[](Agent agent) const { return agent < m_moments.size() ? m_moments[agent] : 0; }
  void set(Agent agent, uint32_t moment) {
    if (agent >= m_moments.size()) m_moments.resize(agent + 1, 0);
    m_moments[agent] = moment;
  }
  void join(const VectorClock& other) {
    if (other.m_moments.size() > m_moments.size()) m_moments.resize(other.m_moments.size(), 0);
    for (size_t i = 0; i < other.m_moments.size(); ++i) m_moments[i] = std::max(m_moments[i], other.m_moments[i]);
  }

 private:
  std::vector<uint32_t> m_moments;
};

/// What an agent knows to have happened, and what of it is visible to the asynchronous proxy (TMA, wgmma) as well: a
/// proxy fence lifts the second to the first.
struct Knowledge {
  VectorClock happened;
  VectorClock fenced;

  void join(const Knowledge& other) {
    happened.join(other.happened);
    fenced.join(other.fenced);
  }
  void fence_proxies() { fenced = happened; }
};

}  // namespace kiln::cuda_emulator
