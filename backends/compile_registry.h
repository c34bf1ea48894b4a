#pragma once

#include <span>

#include "backends/backend.h"

namespace kiln {

/// Every compile backend of this build, best first. Heavy: links the compilers. To add one, add a line to
/// compile_registry.cc.
std::span<const CompileBackend* const> compile_backends();

/// By name, or null.
const CompileBackend* find_compile_backend(std::string_view name);

}  // namespace kiln
