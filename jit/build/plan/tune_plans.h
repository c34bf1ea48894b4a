#pragma once

#include "jit/build/kernels/tune_kernels.h"
#include "jit/build/plan/plan_regions.h"

namespace kiln {

/// Races the plans of regions that have several which have not raced on this machine, each with the code that is known for
/// its kernels, else with the analytic picks. Each is judged as a program first (docs/verdict.md); what all of a region's
/// plans launch alike is not timed. The winner takes its place in `regions`, and its kernels theirs in `chosen`: as a later
/// generation, also where the incumbent won. Records and code are added to `chosen`.
/// Gives how many regions raced.
/// Only what is wrong with the machine is an error; a plan that cannot be judged or timed stays, and the record says why.
Expected<uint32_t> tune_plans(const RegionPartition& partition, const BuildTarget& target, Published& published,
                              const BuildEnvironment& environment, const RaceOrder& order, RegionPlans& regions,
                              ChosenKernels& chosen);

}  // namespace kiln
