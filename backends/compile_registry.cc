#include "backends/compile_registry.h"

#include <algorithm>
#include <array>

#include "backends/cpu/compile/backend.h"

namespace kiln {

std::span<const CompileBackend* const> compile_backends() {
  static const cpu::CpuCompileBackend cpu;
  static const std::array<const CompileBackend*, 1> backends = {&cpu};
  return backends;
}

const CompileBackend* find_compile_backend(std::string_view name) {
  const auto backends = compile_backends();
  const auto it = std::find_if(backends.begin(), backends.end(), [&](const auto* b) { return b->name() == name; });
  return it == backends.end() ? nullptr : *it;
}

}  // namespace kiln
