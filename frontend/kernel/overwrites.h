#pragma once

#include <cstdint>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// Buffers of a spec, by number, that may be the same memory.
struct Overwrite {
  uint32_t output = 0;
  uint32_t input = 0;
  bool operator==(const Overwrite&) const = default;
};

/// The inputs that each output may be written over: where one pass reads them at the very points at which it writes the
/// output, so that no element is read after it was written. Several outputs may be written over as many inputs at once.
std::vector<Overwrite> overwrites(const KernelSpec& spec);

}  // namespace kiln
