#include "backends/compile_registry.h"

#include <algorithm>
#include <array>

#include "backends/cpu/compile/backend.h"
#include "backends/cuda/compile/backend.h"
#include "backends/level_zero/compile/backend.h"

namespace kiln {

std::span<const CompileBackend* const> compile_backends() {
  static const cpu::CpuCompileBackend cpu;
  static const cuda::CudaCompileBackend cuda;
  static const level_zero::LevelZeroCompileBackend level_zero;
  static const std::array<const CompileBackend*, 3> backends = {&cpu, &cuda, &level_zero};
  return backends;
}

const CompileBackend* find_compile_backend(std::string_view name) {
  const auto backends = compile_backends();
  const auto it = std::find_if(backends.begin(), backends.end(), [&](const auto* b) { return b->name() == name; });
  return it == backends.end() ? nullptr : *it;
}

}  // namespace kiln
