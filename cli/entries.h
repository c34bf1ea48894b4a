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

/// What people know it by, which whoever had it built called it: of the first head that says so; "-" where none does.
std::string title_of(const Json& entry);

}  // namespace kiln::cli
