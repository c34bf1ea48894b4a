#pragma once

#include <span>

#include "jit/build/kernels/choose_kernels.h"
#include "jit/build/plan/plan_regions.h"
#include "jit/build/program_verdict/program_verdict.h"

namespace kiln {

/// A linked program, and what it was made of.
struct Linked {
  const Graph& client;     // as it was asked for
  const Graph& canonical;  // of the same
  const Graph& settled;    // the graph that was cut
  const RegionPartition& partition;
  const std::vector<Plan>& plans;
  const ChosenKernels& kernels;
  std::span<const uint8_t> program;
  std::span<const BuiltArtifact> plan_artifacts;
};

/// Runs the program and holds it against the client's graph. Errors: internal when it is wrong.
Expected<ProgramVerdict> judge_linked(const Linked& linked, Published& published, CandidateRunner& runner,
                                      const BuildEnvironment& environment);

}  // namespace kiln
