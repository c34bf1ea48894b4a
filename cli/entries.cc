#include "cli/entries.h"

#include "client/nearest/nearest.h"

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

std::string title_of(const Json& entry) {
  for (const Json& head : entry.value("heads", Json::array())) {
    if (const std::string name = head.value("name", ""); !name.empty()) return name;
  }
  return "-";
}

}  // namespace kiln::cli
