// In the place of backends/runtime_registry.cc: the host and the toy.

#include "backends/runtime_registry.h"

#include <array>

#include "backends/cpu/runtime/runtime.h"
#include "tests/stand_ins/toy/toy_device.h"

namespace kiln {

std::span<const RuntimeBackend* const> runtime_backends() {
  static const cpu::CpuRuntimeBackend cpu;
  static const toy::ToyRuntimeBackend toy;
  static const std::array<const RuntimeBackend*, 2> backends = {&cpu, &toy};
  return backends;
}

}  // namespace kiln
