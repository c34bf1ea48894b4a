#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/expected.h"

/// The few file operations of the store, with errors that name the file.
namespace kiln::files {

/// Creates `path` as a private directory unless it is there; then it must be this user's and closed to
/// others. Errors: permission_denied, unavailable.
Status ensure_private_directory(const std::string& path);

/// Errors: not_found, unavailable.
Expected<std::vector<uint8_t>> read(const std::string& path);
/// Writes aside, then renames: whoever opens `path` sees the old content or the new.
Status replace(const std::string& path, std::span<const uint8_t> bytes);
/// Makes `to` another name of the file `from`, in place of what was there; a copy where the file system has no links.
Status link_or_copy(const std::string& from, const std::string& to);
/// Reads as much of [offset, offset + bytes.size()) as there is; how much that was.
size_t read_at(int fd, std::span<uint8_t> bytes, uint64_t offset);
/// Makes `path` a private file of `size` bytes, with what it has kept. Errors: as of the file system.
Status ensure_sized(const std::string& path, uint64_t size);
/// Names in a directory, without "." and "..".
std::vector<std::string> list(const std::string& path);
/// True when both names lead to one file.
bool same(const std::string& a, const std::string& b);

/// Holds an exclusive lock on a file from acquire to destruction. The kernel lets go of it when the process
/// dies.
class Lock {
 public:
  /// Errors: failed_precondition when another holds it; the message names that process.
  static Expected<Lock> acquire(const std::string& path);
  Lock(Lock&& other) noexcept;
  Lock& operator=(Lock&&) = delete;
  ~Lock();

 private:
  explicit Lock(int fd) : m_fd(fd) {}
  int m_fd;
};

}  // namespace kiln::files
