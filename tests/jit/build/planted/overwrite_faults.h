#pragma once

#include <vector>

#include "tests/jit/build/planted/faults.h"

namespace kiln::planted {

/// A launch is said to allow an output over an input that it reads elsewhere than it writes.
std::vector<Fault> wrong_overwrite(Linked& subject);

}  // namespace kiln::planted
