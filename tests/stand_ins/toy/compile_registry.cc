// In the place of backends/compile_registry.cc: the host and the toy.

#include "backends/compile_registry.h"

#include <array>

#include "backends/cpu/compile/backend.h"
#include "tests/stand_ins/toy/toy_compile.h"

namespace kiln {

std::span<const CompileBackend* const> compile_backends() {
  static const cpu::CpuCompileBackend cpu;
  static const toy::ToyCompileBackend toy;
  static const std::array<const CompileBackend*, 2> backends = {&cpu, &toy};
  return backends;
}

const CompileBackend* find_compile_backend(std::string_view name) {
  for (const CompileBackend* backend : compile_backends()) {
    if (backend->name() == name) return backend;
  }
  return nullptr;
}

}  // namespace kiln
