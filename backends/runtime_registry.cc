#include "backends/runtime_registry.h"

#include <array>

#include "backends/cpu/runtime/runtime.h"
#include "backends/cuda/runtime/runtime.h"
#include "backends/level_zero/runtime/runtime.h"

namespace kiln {

std::span<const RuntimeBackend* const> runtime_backends() {
  static const cpu::CpuRuntimeBackend cpu;
  static const cuda::CudaRuntimeBackend cuda;
  static const level_zero::LevelZeroRuntimeBackend level_zero;
  static const std::array<const RuntimeBackend*, 3> backends = {&cpu, &cuda, &level_zero};
  return backends;
}

}  // namespace kiln
