#pragma once

#include <cstddef>
#include <string>

namespace kiln {

/// How many processors this process can keep busy, at least one: those that it may run on (affinity, cpuset), and no more
/// than its cgroup and those around it have the time of (cpu.max, or cpu.cfs_quota_us), rounded up. `root` is where /proc
/// and /sys lie.
size_t usable_processors(const std::string& root = "");

/// The same, but a core that runs two threads side by side counts once: what frameworks run on where nobody says how many.
size_t usable_cores(const std::string& root = "");

}  // namespace kiln
