#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/compile/emitter.h"
#include "backends/cpu/features.h"

namespace kiln::cpu {

/// What an emitter says of the code it wrote, besides the code.
struct LaunchShape {
  uint64_t tasks = 1;
  uint64_t workspace_bytes = 0;
  /// More spills than this in innermost loops and the candidate is refused (resource_exhausted).
  int max_hot_spills = std::numeric_limits<int>::max();
};

// Each kind of kernel is three functions, one row in backend.cc:
//
//   X_claims(spec, target)            why it cannot be compiled, or ok
//   X_candidates(spec, target)        schedules, best first; at least one for what is claimed
//   emit_X(emitter, spec, schedule)   writes the function `entry` (runtime/entry.h) into the emitter's module
//
// They get valid specs (kiln::validate) of their own kind only.

}  // namespace kiln::cpu
