#include "cli/entries.h"

namespace kiln::cli {

std::string part_of(const Json& entry, std::string_view name) {
  std::string common;
  for (const Json& head : entry.value("heads", Json::array())) {
    for (const auto& [part, value] : parts_of(head)) {
      if (part != name || value == common) continue;
      if (!common.empty()) return "several";
      common = value;
    }
  }
  return common;
}

std::string name_of(const Json& entry) {
  const Json heads = entry.value("heads", Json::array());
  return heads.empty() ? entry.value("digest", "") : heads[0].value("key", "");
}

std::vector<std::pair<std::string, std::string>> parts_of(const Json& head) {
  std::vector<std::pair<std::string, std::string>> parts;
  const auto found = head.find("key_parts");
  if (found == head.end() || !found->is_object()) return parts;
  for (const auto& [name, value] : found->items()) {
    parts.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return parts;
}

}  // namespace kiln::cli
