#pragma once

namespace llvm {
class FunctionPass;
}

namespace kiln::cpu {

/// A machine pass to be added after register allocation: adds to *count the instructions that write or read a
/// spill slot inside innermost loops. The pass manager owns the pass; `count` must outlive it.
llvm::FunctionPass* make_spill_counter(int* count);

}  // namespace kiln::cpu
