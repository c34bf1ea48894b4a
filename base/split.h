#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace kiln {

/// The parts of a list between separators; empty ones are left out.
inline std::vector<std::string> split(std::string_view list, char separator) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const size_t end = std::min(list.find(separator), list.size());
    if (end > 0) parts.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return parts;
}

}  // namespace kiln
