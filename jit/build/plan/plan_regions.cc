#include "jit/build/plan/plan_regions.h"

#include "jit/build/plan/missing_op.h"

namespace kiln {

Expected<std::vector<Plan>> plan_regions(const RegionPartition& partition, const BuildTarget& target,
                                         const ProgressFunction& progress) {
  std::vector<Plan> plans;
  for (const RegionClass& region_class : partition.classes) {
    auto plan = fuse(region_class.graph);
    if (!plan.ok()) return plan.status().with_op(missing_op(region_class.graph, target.backend, target.target));
    plans.push_back(std::move(plan).value());
    progress("fuse", plans.size(), partition.classes.size(), {});
  }
  return plans;
}

}  // namespace kiln
