#include "service/provenance.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace kiln {

namespace provenance {

void add_facts(const BuiltHead& head, nlohmann::json& provenance) {
  if (!head.name.empty()) provenance[k_name] = printable_name(head.name);
  if (!head.not_judged.empty()) provenance[k_not_judged] = head.not_judged;
  if (!head.schedule.empty()) provenance[k_schedule] = printable_name(head.schedule);
}

std::string fact_in(std::string_view provenance, const char* fact) {
  const auto known = nlohmann::json::parse(provenance, nullptr, false);
  return known.is_object() ? known.value(fact, "") : "";
}

}  // namespace provenance

std::string title_of(const Digest& key, std::string_view name) {
  return name.empty() ? key.to_short() : fmt::format("{} ({})", key.to_short(), name);
}

}  // namespace kiln
