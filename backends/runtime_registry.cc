#include "backends/runtime_registry.h"

#include <algorithm>
#include <array>

#include "backends/cpu/runtime/runtime.h"

namespace kiln {

std::span<const RuntimeBackend* const> runtime_backends() {
  static const cpu::CpuRuntimeBackend cpu;
  static const std::array<const RuntimeBackend*, 1> backends = {&cpu};
  return backends;
}

const RuntimeBackend* find_runtime_backend(std::string_view name) {
  const auto backends = runtime_backends();
  const auto it = std::find_if(backends.begin(), backends.end(), [&](const auto* b) { return b->name() == name; });
  return it == backends.end() ? nullptr : *it;
}

}  // namespace kiln
