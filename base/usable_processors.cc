#include "base/usable_processors.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <thread>

#include "base/control_groups.h"

namespace kiln {
namespace {

/// How many processors' time cgroup `folder` has; nothing where it has no limit of its own: "max", or -1 as older kernels say.
std::optional<double> share_in(const std::string& folder) {
  double quota_us = 0, period_us = 0;
  if (std::ifstream both(folder + "/cpu.max"); both) {
    both >> quota_us >> period_us;
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota_us;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period_us;
  }
  return quota_us > 0 && period_us > 0 ? std::optional(quota_us / period_us) : std::nullopt;
}

}  // namespace

size_t usable_processors(const std::string& root) {
  double share = std::max(1U, std::thread::hardware_concurrency());
  for (const std::string& folder : control_groups_of("cpu", root)) {
    if (const auto own = share_in(folder)) share = std::min(share, *own);
  }
  return static_cast<size_t>(std::max(1.0, std::ceil(share)));
}

size_t usable_cores(const std::string& root) {
  const size_t processors = usable_processors(root);
  int is_simultaneous = 0;
  std::ifstream(root + "/sys/devices/system/cpu/smt/active") >> is_simultaneous;
  return is_simultaneous == 1 ? (processors + 1) / 2 : processors;
}

}  // namespace kiln
