#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

/// The driver that a stand-in of a library finds in its process, where that has a device.
namespace kiln::cuda_emulator {

/// One of its functions; null without a driver.
template <typename Function>
Function* of_driver(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(driver, name));
}

inline bool has_context() {
  auto* const context = of_driver<int(void**)>("cuCtxGetCurrent");
  void* current = nullptr;
  return context != nullptr && context(&current) == 0 && current != nullptr;
}

/// Whether the device has all the bytes, in one allocation.
inline bool is_in_memory(const void* address, uint64_t bytes) {
  auto* const range = of_driver<int(uint64_t*, size_t*, uint64_t)>("cuMemGetAddressRange_v2");
  const auto begin = reinterpret_cast<uint64_t>(address);
  uint64_t first = 0;
  size_t held = 0;
  return range != nullptr && range(&first, &held, begin) == 0 && begin + bytes <= first + held;
}

/// Puts the work on a stream, which calls it once. `absent`: what is said without a driver.
inline int put_on_stream(void* stream, void (*work)(void*), void* data, int absent) {
  auto* const put = of_driver<int(void*, void (*)(void*), void*)>("cuLaunchHostFunc");
  return put == nullptr ? absent : put(stream, work, data);
}

}  // namespace kiln::cuda_emulator
