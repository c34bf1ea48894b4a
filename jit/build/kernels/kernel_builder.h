#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "frontend/fuse/plan.h"
#include "jit/build/artifact.h"
#include "jit/build/environment.h"

namespace kiln {

/// One task in how many makes a run of the kernel cost no more than so many scalar operations, roughly.
uint32_t task_step_within(const KernelSpec& spec, double operations);

/// How long a launch may take before it is held to hang.
uint32_t run_timeout_ms(const KernelSpec& spec);

/// The machine that schedules are for: the one that is known, or that the runner says candidates run on, where bits may
/// depend on it.
Machine machine_for(const CompileBackend& backend, const Target& target, const Machine* known);
Machine machine_for(const CompileBackend& backend, const Target& target, const CandidateRunner* runner);

/// One distinct kernel spec that has no code yet, with the launch that first needs it: its fragment of the
/// region graph is the reference the verdict uses.
struct KernelJob {
  Digest key;
  std::string key_parts;
  const Plan* plan = nullptr;
  const Launch* launch = nullptr;
  std::optional<Image> made_before = std::nullopt;  // code that has no verdict yet: tried before any is compiled
  std::optional<SizedSpec> sized = std::nullopt;    // of code that takes sizes from its launches

  const KernelSpec& spec() const { return plan->specs[launch->spec]; }
  /// What the code is of: the spec, or its form of any size.
  const Digest& content() const { return sized ? sized->form : plan->digests[launch->spec]; }
};

struct BuiltKernel {
  BuiltArtifact artifact;
  std::string schedule;  // for people
  double compile_ms = 0, verify_ms = 0;
  double run_ms = 0;                  // of the verified run: its first, on the executor's threads
  double max_error = 0;               // share of the tolerance
  uint64_t checked = 0;               // elements compared
  uint64_t tiles = 0, tiles_met = 0;  // Verdict's, on ordinary numbers
  uint64_t compilations = 0;          // more than one when a candidate was rejected
  std::string rejected;               // what was wrong with the first candidate; empty: it is the kernel
};

/// The head that makes code the job's, with what people are told of it. `schedule`: in words; empty: not known.
BuiltHead code_head(const KernelJob& job, const Digest& code, uint32_t generation, std::string schedule);

/// Spec → candidates → code → verdict: the best-first candidate that compiles and passes. Without a
/// runner the first that compiles: its verdict is deferred.
/// Errors: internal, with every candidate's failure.
Expected<BuiltKernel> build_kernel(const KernelJob& job, const CompileBackend& backend, const Target& target,
                                   CandidateRunner* runner);
/// The same, of these candidates.
Expected<BuiltKernel> build_kernel(const KernelJob& job, const CompileBackend& backend, const Target& target,
                                   CandidateRunner* runner, std::span<const Schedule> candidates);

/// What is done with the first candidates' code, job by job, while they get their verdicts. Most become the kernels.
using Beside = std::function<void(std::span<const BuiltArtifact> first)>;

/// All jobs on the threads that the build may have, most expensive first. One runner per thread. `beside` is called once by
/// one of the threads, before most jobs are done; not at all where a first candidate does not compile.
Expected<std::vector<BuiltKernel>> build_kernels(std::span<const KernelJob> jobs, const BuildTarget& target,
                                                 const BuildEnvironment& environment, const Beside& beside = {});

}  // namespace kiln
