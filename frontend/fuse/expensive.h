#pragma once

#include "frontend/fuse/scalar.h"

namespace kiln {

/// Costs more than a few cycles an element: not computed twice.
bool is_expensive(ScalarOp op);

}  // namespace kiln
