#pragma once

#include "base/status.h"

namespace kiln {

/// Compiles a small kernel with every backend that may be used before a fork, for its best target, and throws it away:
/// afterwards the compilers' tables are built and their pages are in memory, and forks of this process share them.
/// Starts no thread. Errors: what a backend said; the process is usable all the same.
Status warm_up_compilers();

/// Makes the sample pools that nearly every build needs, which forks share. Errors: resource_exhausted.
Status warm_up_samples();

}  // namespace kiln
