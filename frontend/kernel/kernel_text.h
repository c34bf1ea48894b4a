#pragma once

#include <string>

#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// What a spec says, as text for people: a line for each buffer, expression and store; docs/kernels.md has the notation. The spec
/// is one that validate() accepts.
std::string kernel_text(const KernelSpec& spec);

}  // namespace kiln
