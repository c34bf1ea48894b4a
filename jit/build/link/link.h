#pragma once

#include <span>
#include <vector>

#include "frontend/canonical/canonical.h"
#include "frontend/regions/regions.h"
#include "jit/build/artifact.h"
#include "jit/build/environment.h"
#include "jit/build/kernels/choose_kernels.h"
#include "jit/build/plan/plan_regions.h"

namespace kiln {

/// Plans and program with the code chosen for each spec written into them.
struct LinkedArtifacts {
  std::vector<BuiltArtifact> plans;  // one per class of the partition
  std::vector<BuiltHead> plan_heads;
  BuiltArtifact program;
  BuiltHead program_head;
  bool is_tuned = false;  // every kernel and every region that may race has
};

/// A plan with the code chosen for each of its specs written into it, and the head that leads to it.
struct LinkedPlan {
  BuiltArtifact artifact;
  BuiltHead head;
};

/// `region_class` and `generation`: the class's digest, and that of the plan's choices.
LinkedPlan link_plan(const Plan& plan, const Digest& region_class, uint32_t generation,
                     std::span<const KernelChoice> kernels, const BuildTarget& target);

/// Links plans with the kernels chosen for them. The generation of a plan is that of its choices and its kernels' added up,
/// that of a program the sum of its plans': whoever links the same kernels gives the same number, and a kernel that is
/// replaced by a later one raises all that call it. `canonical` is what the program's key is of, `settled` the graph that was cut.
LinkedArtifacts link(const Canonical& canonical, const Graph& settled, const RegionPartition& partition,
                     const RegionPlans& regions, const ChosenKernels& kernels, const BuildTarget& target);

/// The sum of the kernels' generations.
uint32_t generation_of(std::span<const KernelChoice> kernels);

}  // namespace kiln
