#pragma once

#include <level_zero/ze_api.h>

#include <memory>
#include <string_view>

#include "backends/libraries.h"

namespace kiln::level_zero {

/// Every function of the loader that Kiln calls: (name without "ze").
#define KILN_LEVEL_ZERO_FUNCTIONS(X)      \
  X(Init)                                 \
  X(DriverGet)                            \
  X(DriverGetProperties)                  \
  X(DeviceGet)                            \
  X(DeviceGetProperties)                  \
  X(DeviceGetComputeProperties)           \
  X(DeviceGetModuleProperties)            \
  X(DeviceGetMemoryProperties)            \
  X(DeviceGetCommandQueueGroupProperties) \
  X(ContextCreate)                        \
  X(ContextDestroy)                       \
  X(MemAllocDevice)                       \
  X(MemFree)                              \
  X(CommandListCreateImmediate)           \
  X(CommandListDestroy)                   \
  X(CommandListAppendMemoryCopy)          \
  X(CommandListAppendBarrier)             \
  X(CommandListAppendLaunchKernel)        \
  X(EventPoolCreate)                      \
  X(EventPoolDestroy)                     \
  X(EventCreate)                          \
  X(EventDestroy)                         \
  X(EventHostSynchronize)                 \
  X(EventHostReset)                       \
  X(ModuleCreate)                         \
  X(ModuleDestroy)                        \
  X(ModuleGetNativeBinary)                \
  X(ModuleBuildLogGetString)              \
  X(ModuleBuildLogDestroy)                \
  X(KernelCreate)                         \
  X(KernelDestroy)                        \
  X(KernelSetGroupSize)                   \
  X(KernelSetArgumentValue)

/// The loader's functions. Opened at run time: a process that never meets such a device never maps it.
struct Api {
#define KILN_LEVEL_ZERO_MEMBER(name) decltype(&ze##name) name = nullptr;
  KILN_LEVEL_ZERO_FUNCTIONS(KILN_LEVEL_ZERO_MEMBER)
#undef KILN_LEVEL_ZERO_MEMBER
  Library library;

  /// Opens the loader that the search finds first and calls zeInit. It stays open for good: drivers keep threads.
  /// Errors: not_found without the library; failed_precondition when a symbol is missing, naming it; unavailable when
  /// zeInit fails, which is what a loader without a usable driver says.
  static Expected<std::unique_ptr<const Api>> open(const SearchPath& search);
};

/// Ok for success; else "what: the result's name", with the code that fits.
Status to_status(ze_result_t result, std::string_view what);

}  // namespace kiln::level_zero
