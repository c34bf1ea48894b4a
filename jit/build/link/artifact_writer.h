#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "frontend/fuse/plan.h"
#include "jit/build/artifact.h"
#include "jit/build/kernel_choice.h"
#include "jit/build/link/memory_planner.h"
#include "jit/run/sized_numbers.h"

namespace kiln {

/// What plans, or programs, for several sizes of one graph have in common, so that their bytes differ in numbers alone.
struct ManySizes {
  MemoryPlan scratch;                     // of the largest
  std::vector<std::string> names = {};    // of a plan's kernels
  std::vector<SizeRange> ranges = {};     // of a program
  std::vector<SizedNumber> numbers = {};  // those that differ
};

/// Lays the plan's temporaries out in scratch. `kernels[i]` is what plan.specs[i] runs as. Inputs and
/// outputs are stored as argument numbers of a call: the region's `input_count` inputs, then its outputs. The plan's choices
/// are kept when their generation is not 0. `many`: the plan is for many sizes.
BuiltArtifact plan_artifact(const Plan& plan, uint32_t input_count, std::span<const KernelChoice> kernels,
                            uint32_t choice_generation = 0, const ManySizes* many = nullptr);

/// Where plan_artifact() lays its temporaries; what its kernels are called.
MemoryPlan scratch_of(const Plan& plan);
std::vector<std::string> kernel_names(const Plan& plan);

/// A region call of a program: which plan, and the graph's values its inputs and outputs are.
struct ProgramCall {
  uint32_t plan = 0;
  std::vector<ValueId> inputs, outputs;
};

struct ProgramDescription {
  const Graph& graph;  // with settled layouts
  std::vector<Digest> plans;
  std::vector<ProgramCall> calls;  // in executable order
  std::string target;
  uint32_t generation = 0;
  bool is_tuned = false;  // each product and attention has raced, and plans where several compute the same
};

/// Lays the values between regions out in scratch. A graph output that no call writes must be a graph input. `many`: the program
/// is for many sizes.
BuiltArtifact program_artifact(const ProgramDescription& description, const ManySizes* many = nullptr);

/// Where program_artifact() lays what is between regions.
MemoryPlan scratch_of(const ProgramDescription& description);

}  // namespace kiln
