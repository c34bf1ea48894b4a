#pragma once

#include <map>
#include <vector>

#include "base/expected.h"
#include "frontend/fuse/plan.h"
#include "frontend/regions/regions.h"
#include "jit/build/environment.h"
#include "jit/build/published.h"

namespace kiln {

/// The plan of each class of a partition, in its order, and whether others compute the same.
struct RegionPlans {
  std::vector<Plan> plans;
  std::vector<uint32_t> generations;      // of each plan's choices: 0 where none have raced
  std::vector<std::vector<Plan>> others;  // of each class whose plans may race and never have: see other_plans
};

/// Plans with the choices that the cache or the supply (BuildEnvironment::supply) knows a class by, else with the model's. A
/// region whose plan is in the cache is planned too: the verdict over the program holds each launch against it.
/// Errors: unimplemented, with the op that has no kernel (Status::op).
Expected<RegionPlans> plan_regions(const RegionPartition& partition, const BuildTarget& target, Published& published,
                                   const BuildEnvironment& environment);

/// How many launches a plan has of each spec.
std::map<Digest, size_t> launches_by_spec(const Plan& plan);

/// Plans of the same region with other choices and other kernels than `plan` and one another.
std::vector<Plan> other_plans(const Plan& plan);

}  // namespace kiln
