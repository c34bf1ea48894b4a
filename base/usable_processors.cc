#include "base/usable_processors.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

#include "base/split.h"

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

/// The hierarchy that a line of /proc/self/cgroup, "number:controllers:path", has its processors from; nothing for others.
std::optional<std::string> folder_of(std::string_view controllers) {
  if (controllers.empty()) return "/sys/fs/cgroup";
  const auto names = split(controllers, ',');
  if (std::ranges::find(names, "cpu") == names.end()) return std::nullopt;
  return "/sys/fs/cgroup/" + std::string(controllers);
}

}  // namespace

size_t usable_processors(const std::string& root) {
  double share = std::max(1U, std::thread::hardware_concurrency());
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto hierarchy = folder_of(std::string_view(line).substr(first + 1, second - first - 1));
    if (!hierarchy) continue;
    const std::string top = root + *hierarchy;
    // A container sees its own group as the top, whatever its path is outside.
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      if (const auto own = share_in(top + path)) share = std::min(share, *own);
      if (path.find('/') == std::string::npos) break;
    }
  }
  return static_cast<size_t>(std::max(1.0, std::ceil(share)));
}

}  // namespace kiln
