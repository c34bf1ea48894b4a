#include "base/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace kiln {

namespace {

Status system_error(const char* name, const char* what) {
  return error(StatusCode::resource_exhausted, "{}: {}: {}", name, what, std::strerror(errno));
}

}  // namespace

Expected<UniqueFd> make_memfd(const char* name, bool executable) {
  constexpr unsigned k_flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(memfd_create(name, k_flags | (executable ? MFD_EXEC : 0)));
  if (!fd && errno == EINVAL) fd.reset(memfd_create(name, k_flags));  // older kernels refuse MFD_EXEC
  if (!fd) return system_error(name, "memfd");
  return fd;
}

Expected<UniqueFd> sealed_memfd(const char* name, std::span<const uint8_t> bytes, bool executable) {
  KILN_ASSIGN_OR_RETURN(UniqueFd fd, make_memfd(name, executable));
  while (!bytes.empty()) {
    const ssize_t wrote = write(fd.get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return system_error(name, "writing");
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
  // There is no writable mapping yet, so forbidding future ones forbids all. F_SEAL_WRITE would say the same, but fails
  // with EBUSY while the kernel happens to hold one of the pages (DAMON, compaction).
  constexpr int k_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (fcntl(fd.get(), F_ADD_SEALS, k_seals | F_SEAL_FUTURE_WRITE) != 0 &&
      fcntl(fd.get(), F_ADD_SEALS, k_seals | F_SEAL_WRITE) != 0) {  // Linux before 5.1
    return system_error(name, "sealing");
  }
  return fd;
}

}  // namespace kiln
