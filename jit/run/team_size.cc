#include "jit/run/team_size.h"

#include <atomic>

#include "base/process_mutex.h"

namespace kiln {

uint32_t team_size(uint32_t wanted) {
  static std::atomic<uint32_t> team_since{0};  // fork_depth() + 1 of the process that first had a team; 0: none had
  if (wanted == 1) return 1;
  const uint32_t here = fork_depth() + 1;
  uint32_t since = 0;
  if (team_since.compare_exchange_strong(since, here, std::memory_order_relaxed) || since == here) return wanted;
  return 1;
}

}  // namespace kiln
