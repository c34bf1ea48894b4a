#include "base/config/file_system.h"

#include <sys/vfs.h>

#include <filesystem>

namespace kiln {

std::string existing_part(const std::string& path) {
  std::filesystem::path part = path;
  std::error_code failure;
  while (!std::filesystem::exists(part, failure) && part.has_relative_path()) part = part.parent_path();
  return part.string();
}

std::string_view network_file_system(uint64_t magic) {
  struct Row {
    uint64_t magic;
    std::string_view name;
  };
  constexpr Row k_rows[] = {{0x6969, "nfs"},        {0xff534d42, "cifs"}, {0xfe534d42, "smb2"}, {0x01021997, "9p"},
                            {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"}, {0x00c36400, "ceph"}, {0x5346414f, "afs"},
                            {0x19830326, "beegfs"}, {0x65735546, "fuse"}};
  for (const Row& row : k_rows) {
    if (row.magic == magic) return row.name;
  }
  return {};
}

std::string_view network_file_system_of(const std::string& path) {
  struct statfs facts{};
  if (statfs(existing_part(path).c_str(), &facts) != 0) return {};
  return network_file_system(static_cast<uint32_t>(facts.f_type));  // signed in the kernel; magic numbers have 32 bits
}

}  // namespace kiln
