#include "backends/runtime_registry.h"

#include <array>

#include "backends/cpu/runtime/runtime.h"

namespace kiln {

std::span<const RuntimeBackend* const> runtime_backends() {
  static const cpu::CpuRuntimeBackend cpu;
  static const std::array<const RuntimeBackend*, 1> backends = {&cpu};
  return backends;
}

}  // namespace kiln
