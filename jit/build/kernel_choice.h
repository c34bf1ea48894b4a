#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.h"

namespace kiln {

/// The code that a kernel spec runs as. Generation 0 is the analytic pick; a tuned winner is of a later one.
struct KernelChoice {
  Digest code;
  uint32_t generation = 0;
  std::vector<int64_t> extents = {};  // of the spec, where the code takes sizes from its launch
  bool carries_tasks = false;         // as SizedSpec
};

}  // namespace kiln
