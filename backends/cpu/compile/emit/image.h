#pragma once

#include <string>

#include "backends/backend.h"
#include "backends/cpu/features.h"

namespace llvm {
class Module;
}

namespace kiln::cpu {

/// What making an image showed.
struct ImageReport {
  int hot_spills = 0;  // loads and stores of spill slots in innermost loops
  double codegen_ms = 0;
  double link_ms = 0;
};

/// Name of the function an image starts at; the module defines exactly one with external linkage.
inline constexpr const char* k_entry_name = "entry";

/// Turns a module in its final shape into an image: code generation (no IR passes; the emitters write what
/// should run) and a link into one flat buffer. Fills code, entry and features; tasks and workspace are the
/// emitter's.
///
/// The linker is the verifier: an absolute relocation, a writable section or a symbol the module does not
/// define is an `internal` error naming it, so what becomes an image runs at any address and calls nothing.
/// The module is consumed by code generation and must not be used again.
Expected<Image> make_image(llvm::Module& module, const CpuTarget& target, ImageReport* report = nullptr);

}  // namespace kiln::cpu
