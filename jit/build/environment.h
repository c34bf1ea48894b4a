#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>

#include "backends/backend.h"
#include "base/expected.h"
#include "base/limits.h"
#include "jit/build/artifact.h"
#include "jit/build/code_supply.h"
#include "jit/resolve/key.h"
#include "verdict/candidate_runner.h"

namespace kiln {

/// Finds a compile backend by its name; null when this build has none of that name.
using BackendFinder = std::function<const CompileBackend*(std::string_view)>;

/// Makes one runner per thread that verifies. Errors: not_found, with the reason, when no device of the target is there.
using RunnerFactory = std::function<Expected<std::unique_ptr<CandidateRunner>>(const Target&)>;

/// Is given a runner that its thread needs no more, from any thread.
using RunnerTaker = std::function<void(const Target&, std::unique_ptr<CandidateRunner>)>;

/// Called from any thread: stage ("fuse", "compile", "verify"), how many are done, of how many, and what.
using ProgressFunction =
    std::function<void(std::string_view stage, uint64_t done, uint64_t total, std::string_view item)>;

/// Publishes what races have found while the build goes on: a build that is ended loses one race at most. It brings the same
/// again with its end.
using ResultKeeper = std::function<void(BuildResult found)>;

/// What a build is given by the process that it runs in.
struct BuildEnvironment {
  RunnerFactory make_runner;
  RunnerTaker done_with = [](const Target&, std::unique_ptr<CandidateRunner>) {};
  ProgressFunction progress = [](std::string_view, uint64_t, uint64_t, std::string_view) {};
  ResultKeeper keep = [](const BuildResult&) {};
  /// How many threads the build may have at this moment; fewer than before when others build too.
  std::function<size_t()> threads = [] { return size_t{std::thread::hardware_concurrency()}; };
  /// How many runners of a target the build may have at once.
  std::function<size_t(const Target&)> most_runners = [](const Target&) { return std::numeric_limits<size_t>::max(); };
  uint64_t program_verdict_max_bytes = limits::k_program_verdict_bytes;  // of memory
  CodeSupply* supply = nullptr;                                          // null: there is the mapped cache alone
};

/// Whose code a build makes, and how much it may promise.
struct BuildTarget {
  const CompileBackend& backend;
  const Target& target;
  Proof proof;
  const Machine* machine =
      nullptr;  // of the device that is there; null: asked of a runner, or as the target's row states it
};

/// Null where verdicts are deferred.
inline Expected<std::unique_ptr<CandidateRunner>> make_runner(const BuildEnvironment& environment,
                                                              const BuildTarget& target) {
  if (target.proof == Proof::deferred) return std::unique_ptr<CandidateRunner>();
  return environment.make_runner(target.target);
}

}  // namespace kiln
