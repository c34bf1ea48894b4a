#include "jit/build/many_sizes/link_many.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/limits.h"
#include "jit/build/link/artifact_writer.h"
#include "jit/build/many_sizes/fit_numbers.h"

namespace kiln {

namespace {

std::vector<Sizes> sizes_of(std::span<const PlannedSizes> samples) {
  std::vector<Sizes> sizes;
  for (const PlannedSizes& sample : samples) sizes.push_back(sample.sizes);
  return sizes;
}

/// The kernels of a plan for one of the sizes: with as many tasks as for the largest, since no polynomial says how many there are.
std::vector<KernelChoice> kernels_of(const PlannedSizes& sample, size_t plan, const PlannedSizes& largest) {
  std::vector<KernelChoice> kernels = sample.kernels.of_plans[plan];
  for (size_t k = 0; k < kernels.size(); ++k) {
    if (kernels[k].carries_tasks) kernels[k].extents.front() = largest.kernels.of_plans[plan][k].extents.front();
  }
  return kernels;
}

/// That both are of the same code.
Status check_alike(const PlannedSizes& a, const PlannedSizes& b) {
  const auto differ = [&](std::string_view what) {
    return error(StatusCode::unimplemented, "sizes {} and {} have other {}", fmt::join(a.sizes, ", "),
                 fmt::join(b.sizes, ", "), what);
  };
  for (size_t p = 0; p < a.plans.size(); ++p) {
    const std::vector<KernelChoice>&mine = a.kernels.of_plans[p], &others = b.kernels.of_plans[p];
    for (size_t k = 0; k < mine.size(); ++k) {
      if (mine[k].code != others[k].code) return differ("code of " + kernel_name(a.plans[p].specs[k]));
    }
  }
  return {};
}

/// The artifact that `write(sample, many)` gives for the last of the samples, with the numbers in which those of others differ.
template <typename Write>
Expected<BuiltArtifact> fitted(std::span<const PlannedSizes> samples, ManySizes many, const Write& write) {
  std::vector<std::vector<uint8_t>> bytes;
  for (const PlannedSizes& sample : samples) bytes.push_back(write(sample, many).payload);
  KILN_ASSIGN_OR_RETURN(many.numbers, fit_numbers(sizes_of(samples), bytes));
  return write(samples.back(), many);
}

ProgramDescription description_of(const PlannedSizes& sample, const std::vector<BuiltArtifact>& plans,
                                  const Target& target) {
  ProgramDescription description{sample.settled, {}, {}, target.name, 0, true};
  for (const BuiltArtifact& plan : plans) description.plans.push_back(plan.digest);
  for (const Region& region : sample.partition.regions)
    description.calls.push_back({region.class_index, region.inputs, region.outputs});
  return description;
}

uint64_t scratch_bytes(const PlannedSizes& sample, const Target& target) {
  uint64_t most = 0;
  for (const Plan& plan : sample.plans) most = std::max(most, scratch_of(plan).total_bytes);
  return most + scratch_of(description_of(sample, {}, target)).total_bytes;
}

}  // namespace

Expected<LinkedMany> link_many(std::span<const PlannedSizes> samples, const std::vector<SizeRange>& ranges,
                               const Target& target) {
  const PlannedSizes& largest = samples.front();
  for (const PlannedSizes& sample : samples) KILN_RETURN_IF_ERROR(check_alike(largest, sample));
  if (const uint64_t bytes = scratch_bytes(largest, target); bytes > limits::k_many_sizes_scratch_bytes) {
    return error(StatusCode::unimplemented, "the largest take {} bytes of scratch, at most {}", bytes,
                 limits::k_many_sizes_scratch_bytes);
  }
  LinkedMany linked;
  for (size_t p = 0; p < largest.plans.size(); ++p) {
    const auto write = [&](const PlannedSizes& sample, const ManySizes& many) {
      const auto inputs = static_cast<uint32_t>(sample.plans[p].region.inputs().size());
      return plan_artifact(sample.plans[p], inputs, kernels_of(sample, p, largest), 0, &many);
    };
    const ManySizes common{scratch_of(largest.plans[p]), kernel_names(largest.plans[p])};
    KILN_ASSIGN_OR_RETURN(BuiltArtifact plan, fitted(samples, common, write));
    linked.plans.push_back(std::move(plan));
  }
  const auto write = [&](const PlannedSizes& sample, const ManySizes& many) {
    return program_artifact(description_of(sample, linked.plans, target), &many);
  };
  const ManySizes common{scratch_of(description_of(largest, linked.plans, target)), {}, ranges};
  KILN_ASSIGN_OR_RETURN(linked.program, fitted(samples, common, write));
  return linked;
}

}  // namespace kiln
