#include "jit/build/plan/plan_regions.h"

#include <algorithm>
#include <map>

#include "jit/build/plan/missing_op.h"
#include "jit/resolve/key.h"

namespace kiln {

Expected<RegionPlans> plan_regions(const RegionPartition& partition, const BuildTarget& target, Published& published,
                                   const ProgressFunction& progress) {
  RegionPlans regions;
  for (const RegionClass& region_class : partition.classes) {
    const Key key = plan_key(region_class.digest, target.target, target.proof);
    const PublishedChoices chosen = published.choices(key.digest()).value_or(PublishedChoices{});
    auto plan = fuse(region_class.graph, chosen.choices);
    if (!plan.ok()) return plan.status().with_op(missing_op(region_class.graph, target.backend, target.target));
    const bool may_race = !target.target.is_deterministic && chosen.generation == 0;
    regions.others.push_back(may_race ? other_plans(*plan) : std::vector<Plan>{});
    regions.generations.push_back(chosen.generation);
    regions.plans.push_back(std::move(plan).value());
    progress("fuse", regions.plans.size(), partition.classes.size(), {});
  }
  return regions;
}

std::vector<Plan> other_plans(const Plan& plan) {
  std::vector<Plan> others;
  std::vector<std::map<Digest, size_t>> known{launches_by_spec(plan)};
  for (const FuseChoices& choices : fuse_choices(plan.graph)) {
    if (choices == plan.choices) continue;
    auto other = fuse(plan.region, choices);
    if (!other.ok() || std::ranges::find(known, launches_by_spec(*other)) != known.end()) continue;
    known.push_back(launches_by_spec(*other));
    others.push_back(std::move(other).value());
  }
  return others;
}

std::map<Digest, size_t> launches_by_spec(const Plan& plan) {
  std::map<Digest, size_t> counts;
  for (const Launch& launch : plan.launches) ++counts[plan.digests[launch.spec]];
  return counts;
}

}  // namespace kiln
