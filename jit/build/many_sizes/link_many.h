#pragma once

#include <span>

#include "base/expected.h"
#include "jit/build/kernels/choose_kernels.h"
#include "jit/build/many_sizes/sample_sizes.h"
#include "jit/build/plan/plan_regions.h"

namespace kiln {

/// A graph of symbols, planned for some sizes with code for any.
struct PlannedSizes {
  Sizes sizes;
  Graph graph;  // in its canonical form, bound to the sizes
  Graph settled;
  RegionPartition partition;
  std::vector<Plan> plans;
  ChosenKernels kernels;
};

/// A program for many sizes: its bytes, and its plans'.
struct LinkedMany {
  std::vector<BuiltArtifact> plans;
  BuiltArtifact program;
};

/// Links what was planned for samples of the ranges' sizes, of which the first has the largest scratch. Errors: unimplemented
/// where sizes make other differences than in numbers that follow from them (fit_numbers.h), or the scratch is too much.
Expected<LinkedMany> link_many(std::span<const PlannedSizes> samples, const std::vector<SizeRange>& ranges,
                               const Target& target);

}  // namespace kiln
