#pragma once

#include <span>
#include <vector>

#include "frontend/canonical/canonical.h"
#include "frontend/regions/regions.h"
#include "jit/build/artifact.h"
#include "jit/build/environment.h"
#include "jit/build/kernels/choose_kernels.h"

namespace kiln {

/// Plans and program with the code chosen for each spec written into them.
struct LinkedArtifacts {
  std::vector<BuiltArtifact> plans;  // one per class of the partition
  std::vector<BuiltHead> plan_heads;
  BuiltArtifact program;
  BuiltHead program_head;
  bool is_tuned = false;  // every kernel that may race has
};

/// Links `plans` with the kernels chosen for them. The generation of a plan is the sum of its kernels', that of a program
/// the sum of its plans': whoever links the same kernels gives the same number, and a kernel that is replaced by a later
/// one raises all that call it. `canonical` is what the program's key is of, `settled` the graph that was cut.
LinkedArtifacts link(const Canonical& canonical, const Graph& settled, const RegionPartition& partition,
                     std::span<const Plan> plans, const ChosenKernels& kernels, const BuildTarget& target);

}  // namespace kiln
