#pragma once

#include "backends/cpu/compile/emit/kernel_emission.h"

namespace kiln::cpu {

/// The ways to compile a LoopsSpec.
std::span<const Implementation> loops_implementations();

}  // namespace kiln::cpu
