#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "jit/build/artifact.h"

namespace kiln {

/// What a head's provenance says beside the parts of its key (JSON, cache/store/store.h).
namespace provenance {

inline constexpr const char* k_name = "name";
inline constexpr const char* k_not_judged = "not_judged";
inline constexpr const char* k_schedule = "schedule";

/// Adds to `provenance`, an object, what is known of the head beside its key's parts.
void add_facts(const BuiltHead& head, nlohmann::json& provenance);
/// One of the above; empty where it is not said.
std::string fact_in(std::string_view provenance, const char* fact);

}  // namespace provenance

/// How logs and events speak of a program: by the first digits of its key, which lists show, and its name.
std::string title_of(const Digest& key, std::string_view name);

}  // namespace kiln
