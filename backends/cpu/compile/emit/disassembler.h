#pragma once

#include <string>

#include "backends/backend.h"
#include "backends/cpu/features.h"

namespace kiln::cpu {

/// Every instruction that the entry point reaches by direct branches and calls, in Intel's syntax and in the order of
/// addresses; whatever a branch or a call leads to has a label. Two comments enclose the hot loop: of the innermost loops
/// the one with most multiplications of vectors, of equally many the longest.
/// Errors: data_loss where the entry point or a branch leads out of the code, or to bytes that are no instruction.
Expected<std::string> disassemble(const Image& image, const CpuTarget& target);

}  // namespace kiln::cpu
