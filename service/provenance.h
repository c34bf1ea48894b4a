#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/digest.h"

namespace kiln {

/// What a head's provenance says beside the parts of its key (JSON, cache/store/store.h).
namespace provenance {
inline constexpr const char* k_name = "name";
inline constexpr const char* k_not_judged = "not_judged";
}  // namespace provenance

/// How logs and events speak of a program: by the first digits of its key, which lists show, and its name.
inline std::string title_of(const Digest& key, std::string_view name) {
  return name.empty() ? key.to_short() : fmt::format("{} ({})", key.to_short(), name);
}

}  // namespace kiln
