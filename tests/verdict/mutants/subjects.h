#pragma once

#include <string>
#include <vector>

#include "frontend/fuse/plan.h"

namespace kiln::mutants {

/// A fused graph; each of its launches is a kernel to be mutated.
struct Subject {
  std::string name;
  Plan plan;
};

/// Kernels of every kind, at sizes that leave tails of tiles and vectors, some larger than what a verdict looks at.
/// Extents repeat within a kernel, so that transposed strides stay inside their buffers.
std::vector<Subject> subjects();

}  // namespace kiln::mutants
