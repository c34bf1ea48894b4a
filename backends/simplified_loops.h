#pragma once

#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// The same loops with as few dims as possible: dims of extent 1 are gone, and two neighbours are one
/// wherever every access moves through both at one stride and no expression uses their index. Parallel and
/// reduced dims stay apart.
LoopsSpec simplified(const LoopsSpec& loops);

}  // namespace kiln
