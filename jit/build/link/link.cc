#include "jit/build/link/link.h"

#include "frontend/text/summary.h"
#include "jit/build/kernels/tune_kernels.h"
#include "jit/build/link/artifact_writer.h"
#include "jit/resolve/key.h"

namespace kiln {

namespace {

/// Whether each kernel that may race has.
bool is_tuned(const Plan& plan, std::span<const KernelChoice> kernels, const Target& target) {
  for (size_t i = 0; i < plan.specs.size(); ++i) {
    if (is_tunable(plan.specs[i], target) && kernels[i].generation == 0) return false;
  }
  return true;
}

}  // namespace

uint32_t generation_of(std::span<const KernelChoice> kernels) {
  uint32_t sum = 0;
  for (const KernelChoice& kernel : kernels) sum += kernel.generation;
  return sum;
}

LinkedPlan link_plan(const Plan& plan, const Digest& region_class, uint32_t generation,
                     std::span<const KernelChoice> kernels, const BuildTarget& target) {
  LinkedPlan linked;
  linked.artifact = plan_artifact(plan, static_cast<uint32_t>(plan.region.inputs().size()), kernels, generation);
  const Key key = plan_key(region_class, target.target, target.proof);
  linked.head = {key.digest(), linked.artifact.digest, generation + generation_of(kernels), key.to_json(),
                 summary(plan.region)};
  return linked;
}

LinkedArtifacts link(const Canonical& canonical, const Graph& settled, const RegionPartition& partition,
                     const RegionPlans& regions, const ChosenKernels& kernels, const BuildTarget& target) {
  LinkedArtifacts linked;
  ProgramDescription description{settled, {}, {}, target.target.name, 0, true};
  for (size_t i = 0; i < regions.plans.size(); ++i) {
    const Plan& plan = regions.plans[i];
    auto [artifact, head] =
        link_plan(plan, partition.classes[i].digest, regions.generations[i], kernels.of_plans[i], target);
    description.plans.push_back(artifact.digest);
    description.generation += head.generation;
    description.is_tuned =
        description.is_tuned && regions.others[i].empty() && is_tuned(plan, kernels.of_plans[i], target.target);
    linked.plans.push_back(std::move(artifact));
    linked.plan_heads.push_back(std::move(head));
  }
  for (const Region& region : partition.regions) {
    description.calls.push_back({region.class_index, region.inputs, region.outputs});
  }
  linked.program = program_artifact(description);
  linked.is_tuned = description.is_tuned;
  const Key key = program_key(canonical.digest, target.target, target.proof);
  linked.program_head = {key.digest(), linked.program.digest, description.generation, key.to_json(), {}};
  return linked;
}

}  // namespace kiln
