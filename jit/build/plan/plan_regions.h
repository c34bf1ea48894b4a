#pragma once

#include <vector>

#include "base/expected.h"
#include "frontend/fuse/plan.h"
#include "frontend/regions/regions.h"
#include "jit/build/environment.h"

namespace kiln {

/// The plan of each class of the partition, in its order. A region whose plan is in the cache is planned too: the verdict
/// over the program holds each launch against it.
/// Errors: unimplemented, with the op that has no kernel (Status::op).
Expected<std::vector<Plan>> plan_regions(const RegionPartition& partition, const BuildTarget& target,
                                         const ProgressFunction& progress);

}  // namespace kiln
