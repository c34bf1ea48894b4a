#pragma once

#include "frontend/kernel/scalar.h"

namespace kiln {

/// Whether the operation costs more than a few cycles an element, so that it is not computed twice.
bool is_expensive(ScalarOp op);

}  // namespace kiln
