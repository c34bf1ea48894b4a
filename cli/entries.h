#pragma once

#include <string>
#include <string_view>

#include "cli/output.h"

/// The daemon's entries (service/store_entries.cc) as commands read them.
namespace kiln::cli {

/// Part `name` of the keys that lead to the entry: the common value, "several", or "".
std::string part_of(const Json& entry, std::string_view name);

/// The first key that leads to the entry, or its digest when none does: what people call it by.
std::string name_of(const Json& entry);

}  // namespace kiln::cli
