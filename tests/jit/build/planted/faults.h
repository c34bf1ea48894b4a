#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/jit/build/planted/linked.h"

namespace kiln::planted {

struct Fault {
  std::string what;
  std::function<void(Parts&)> apply;
};

/// A way in which what stands between kernels can be wrong.
struct FaultKind {
  const char* name;
  /// Every place in the program where it matters, up to a few dozen.
  std::vector<Fault> (*plant)(Linked& subject);
};

const std::vector<FaultKind>& fault_kinds();

}  // namespace kiln::planted
