#include "cache/store/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/fault.h"

namespace kiln::files {
namespace {

Status failed(const std::string& path, int code = errno) {
  switch (code) {
    case ENOENT:
      return error(StatusCode::not_found, "{}: {}", path, std::strerror(code));
    case EACCES:
    case EPERM:
      return error(StatusCode::permission_denied, "{}: {}", path, std::strerror(code));
    case ENOSPC:
    case EDQUOT:
      return error(StatusCode::resource_exhausted, "{}: {}", path, std::strerror(code));
    default:
      return error(StatusCode::unavailable, "{}: {}", path, std::strerror(code));
  }
}

Status write_all(int fd, std::span<const uint8_t> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

Status ensure_private_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return failed(path);
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return failed(path);
  if (!S_ISDIR(status.st_mode)) return error(StatusCode::failed_precondition, "{}: not a directory", path);
  if (status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    return error(StatusCode::permission_denied, "{} is of user {} and mode {:o}, expected {} and 700; chmod 700 {}",
                 path, status.st_uid, status.st_mode & 07777, geteuid(), path);
  }
  return {};
}

Expected<std::vector<uint8_t>> read(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return failed(path);
  struct stat status{};
  std::vector<uint8_t> bytes;
  size_t filled = 0;
  if (fstat(fd, &status) == 0) bytes.resize(static_cast<size_t>(status.st_size));
  while (filled < bytes.size()) {
    const ssize_t count = ::read(fd, bytes.data() + filled, bytes.size() - filled);
    if (count <= 0) break;
    filled += static_cast<size_t>(count);
  }
  ::close(fd);
  bytes.resize(filled);
  return bytes;
}

Status replace(const std::string& path, std::span<const uint8_t> bytes) {
  const std::string aside = path + ".tmp";
  const int fd = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return failed(aside);
  Status status = write_all(fd, bytes, aside);
  if (::close(fd) != 0 && status.ok()) status = failed(aside);
  KILN_FAULT_POINT("cache.replace.written");
  if (status.ok() && rename(aside.c_str(), path.c_str()) != 0) status = failed(path);
  if (!status.ok()) ::unlink(aside.c_str());
  return status;
}

size_t read_at(int fd, std::span<uint8_t> bytes, uint64_t offset) {
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = pread(fd, bytes.data() + filled, bytes.size() - filled, static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    filled += static_cast<size_t>(got);
  }
  return filled;
}

Status ensure_sized(const std::string& path, uint64_t size) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return failed(path);
  const Status status = fchmod(fd, 0600) == 0 && ftruncate(fd, static_cast<off_t>(size)) == 0 ? Status() : failed(path);
  ::close(fd);
  return status;
}

Status link_or_copy(const std::string& from, const std::string& to) {
  ::unlink(to.c_str());
  int code = ::link(from.c_str(), to.c_str()) == 0 ? 0 : errno;
#ifdef KILN_FAULT_POINTS
  if (!pass_fault_point("cache.link").ok()) code = EPERM;
#endif
  if (code == 0) return {};
  // FAT, some FUSE and overlay file systems, and a link count that is full.
  if (code != EPERM && code != EOPNOTSUPP && code != ENOSYS && code != EMLINK && code != EXDEV) {
    return failed(fmt::format("linking {} to {}", from, to), code);
  }
  ::unlink(to.c_str());
  KILN_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, read(from));
  return replace(to, bytes);
}

std::vector<std::string> list(const std::string& path) {
  std::vector<std::string> names;
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(directory);
  return names;
}

bool same(const std::string& a, const std::string& b) {
  struct stat first{}, second{};
  return lstat(a.c_str(), &first) == 0 && lstat(b.c_str(), &second) == 0 && first.st_ino == second.st_ino &&
         first.st_dev == second.st_dev;
}

Expected<Lock> Lock::acquire(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return failed(path);
  Lock lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char holder[32] = "";
    const ssize_t size = pread(fd, holder, sizeof holder - 1, 0);
    return error(StatusCode::failed_precondition, "{}: the cache is open in process {}", path,
                 size > 0 ? std::string_view(holder, static_cast<size_t>(size)) : "unknown");
  }
  const std::string self = std::to_string(getpid());
  if (ftruncate(fd, 0) != 0 || pwrite(fd, self.data(), self.size(), 0) < 0) return failed(path);
  return lock;
}

Lock::Lock(Lock&& other) noexcept : m_fd(std::exchange(other.m_fd, -1)) {}

Lock::~Lock() {
  if (m_fd >= 0) ::close(m_fd);
}

}  // namespace kiln::files
