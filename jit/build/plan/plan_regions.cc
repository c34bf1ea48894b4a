#include "jit/build/plan/plan_regions.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "jit/build/plan/missing_op.h"
#include "jit/build/plan/model_choices.h"
#include "jit/resolve/key.h"

namespace kiln {

namespace {

using KnownChoices = std::unordered_map<Digest, PublishedChoices>;

Digest key_of(const RegionClass& region_class, const BuildTarget& target) {
  return plan_key(region_class.digest, target.target, target.proof).digest();
}

/// By the plans' keys: what the cache knows, and of the rest what the supply has.
Expected<KnownChoices> known_choices(const RegionPartition& partition, const BuildTarget& target, Published& published,
                                     CodeSupply* supply) {
  KnownChoices known;
  std::vector<Digest> unknown;
  for (const RegionClass& region_class : partition.classes) {
    const Digest key = key_of(region_class, target);
    if (const auto choices = published.choices(key)) {
      known.emplace(key, *choices);
    } else {
      unknown.push_back(key);
    }
  }
  // Whose results are to be the same each time races nothing.
  if (supply == nullptr || unknown.empty() || target.target.is_deterministic) return known;
  KILN_ASSIGN_OR_RETURN(const auto plans, supply->find(unknown, ArtifactKind::plan, /*raced=*/true));
  for (const SuppliedEntry& plan : plans) {
    if (const auto choices = choices_in(plan.artifact.payload)) known.emplace(plan.key, *choices);
  }
  return known;
}

}  // namespace

Expected<RegionPlans> plan_regions(const RegionPartition& partition, const BuildTarget& target, Published& published,
                                   const BuildEnvironment& environment) {
  KILN_ASSIGN_OR_RETURN(const KnownChoices known, known_choices(partition, target, published, environment.supply));
  RegionPlans regions;
  for (const RegionClass& region_class : partition.classes) {
    const auto found = known.find(key_of(region_class, target));
    const PublishedChoices chosen =
        found != known.end() ? found->second : PublishedChoices{model_choices(target.backend, target.target)};
    auto plan = fuse(region_class.graph, chosen.choices);
    if (!plan.ok()) return plan.status().with_op(missing_op(region_class.graph, target.backend, target.target));
    const bool may_race = !target.target.is_deterministic && chosen.generation == 0;
    regions.others.push_back(may_race ? other_plans(*plan) : std::vector<Plan>{});
    regions.generations.push_back(chosen.generation);
    regions.plans.push_back(std::move(plan).value());
    environment.progress("fuse", regions.plans.size(), partition.classes.size(), {});
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
