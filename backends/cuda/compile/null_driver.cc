#include "backends/cuda/compile/null_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "base/fd.h"

namespace kiln::cuda {

// Of null_driver.c's library: no file of it is installed where a loader could find it.
extern const std::span<const unsigned char> null_driver_bytes;

namespace {

constexpr const char* k_name = "libcuda.so.1";

Status open_own() {
  const UniqueFd file(memfd_create(k_name, MFD_CLOEXEC));
  if (!file || write(file.get(), null_driver_bytes.data(), null_driver_bytes.size()) !=
                   static_cast<ssize_t>(null_driver_bytes.size()))
    return error(StatusCode::unavailable, "cuda: no memory for a driver without a device: {}", std::strerror(errno));
  if (dlopen(fmt::format("/proc/self/fd/{}", file.get()).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
    return error(StatusCode::unavailable, "cuda: a driver without a device: {}", dlerror());
  return {};
}

}  // namespace

Status ensure_driver() {
  static const Status ensured = dlopen(k_name, RTLD_NOW | RTLD_NOLOAD) != nullptr ? Status() : open_own();
  return ensured;
}

}  // namespace kiln::cuda
