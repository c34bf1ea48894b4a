#include "jit/run/launch_profile.h"

#include <chrono>
#include <cstdlib>
#include <cstring>

namespace kiln {

bool LaunchProfile::is_wanted() {
  const char* value = std::getenv("KILN_PROFILE");
  return value != nullptr && *value != 0 && std::strcmp(value, "0") != 0;
}

uint64_t LaunchProfile::now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void LaunchProfile::add(size_t launch, bool is_caller, uint64_t start_ns, uint64_t end_ns) {
  Times& times = m_times[launch];
  times.busy_ns.fetch_add(end_ns - start_ns, std::memory_order_relaxed);
  if (!is_caller) return;
  const uint64_t wall_ns = now_ns() - start_ns;
  times.wall_ns.fetch_add(wall_ns, std::memory_order_relaxed);
  uint64_t shortest_ns = times.shortest_ns.load(std::memory_order_relaxed);
  while (wall_ns < shortest_ns && !times.shortest_ns.compare_exchange_weak(shortest_ns, wall_ns)) {
  }
}

}  // namespace kiln
