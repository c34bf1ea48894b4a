#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace kiln {

/// Where a program's time goes, launch by launch; kept when the environment has KILN_PROFILE set to anything but 0.
/// Threading: any threads at once; concurrent calls add up.
class LaunchProfile {
 public:
  struct Times {
    std::atomic<uint64_t> wall_ns{
        0};  // from its first task's start to its last one's end, as the calling thread saw it
    std::atomic<uint64_t> busy_ns{0};               // in the kernel, summed over threads
    std::atomic<uint64_t> shortest_ns{UINT64_MAX};  // the least wall time of a run
  };

  explicit LaunchProfile(size_t launches) : m_times(launches) {}

  static bool is_wanted();
  static uint64_t now_ns();

  /// One thread's part in a run of `launch`: in the kernel from start to end, then waiting until now.
  void add(size_t launch, bool is_caller, uint64_t start_ns, uint64_t end_ns);
  const Times& of(size_t launch) const { return m_times[launch]; }
  void count_run() { m_runs.fetch_add(1, std::memory_order_relaxed); }
  uint64_t runs() const { return m_runs.load(std::memory_order_relaxed); }

 private:
  std::vector<Times> m_times;
  std::atomic<uint64_t> m_runs{0};
};

}  // namespace kiln
