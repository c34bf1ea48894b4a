#include "base/control_groups.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/split.h"

namespace kiln {
namespace {

/// The hierarchy that a line of /proc/self/cgroup, "number:controllers:path", has `controller` from; nothing for others.
std::optional<std::string> folder_of(std::string_view controllers, std::string_view controller) {
  if (controllers.empty()) return "/sys/fs/cgroup";
  const auto names = split(controllers, ',');
  if (std::ranges::find(names, controller) == names.end()) return std::nullopt;
  return "/sys/fs/cgroup/" + std::string(controllers);
}

}  // namespace

std::vector<std::string> control_groups_of(std::string_view controller, const std::string& root) {
  std::vector<std::string> folders;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const auto hierarchy = folder_of(std::string_view(line).substr(first + 1, second - first - 1), controller);
    if (!hierarchy) continue;
    const std::string top = root + *hierarchy;
    // A container sees its own group as the top, whatever its path is outside.
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      folders.push_back(top + path);
      if (path.find('/') == std::string::npos) break;
    }
  }
  return folders;
}

}  // namespace kiln
