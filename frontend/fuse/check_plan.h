#pragma once

#include "base/status.h"
#include "frontend/fuse/plan.h"

namespace kiln {

/// Whether a plan's kernels fit together, whatever each computes: a launch reads only what its buffer holds then, a
/// buffer holds values of one layout, nothing writes an input or what it reads beside, and every output is written in
/// the strides that are asked for. What fuse() gives has passed it.
/// Errors: internal, naming the op of the launch.
Status check_plan(const Plan& plan);

}  // namespace kiln
