#pragma once

#include "backends/cpu/features.h"

namespace llvm {
class LLVMTargetMachine;
}

namespace kiln::cpu {

/// LLVM's code generator for `target`, made on first use and kept for this thread (making one costs 1.4 ms).
/// Position independent, small code model, no exceptions. Initialises LLVM the first time, from any thread.
llvm::LLVMTargetMachine& target_machine(const CpuTarget& target);

}  // namespace kiln::cpu
