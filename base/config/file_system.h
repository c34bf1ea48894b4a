#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kiln {

/// The nearest part of `path` that exists: what is to be made lies on its file system.
std::string existing_part(const std::string& path);

/// The name of a file system whose mappings or locks other hosts can disturb ("nfs", "lustre", …), by statfs's magic
/// number; "" for all others.
std::string_view network_file_system(uint64_t magic);
/// The same of the file system that holds `path`, or would; "" when that cannot be found out.
std::string_view network_file_system_of(const std::string& path);

}  // namespace kiln
