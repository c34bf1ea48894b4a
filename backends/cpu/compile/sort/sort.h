#pragma once

#include "backends/cpu/compile/emit/kernel_emission.h"

namespace kiln::cpu {

/// The ways to compile a SortSpec.
std::span<const Implementation> sort_implementations();

}  // namespace kiln::cpu
