#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/candidate_runner.h"
#include "backends/backend.h"
#include "base/digest.h"
#include "base/expected.h"

namespace kiln {

/// What a compile worker is asked.
struct BuildRequest {
  std::vector<uint8_t> graph_wire;  // every symbol bound
  std::vector<Target> targets;      // one program each
  std::string cache_directory;      // read through the mapped cache: what is there is not built again
};

/// An immutable result: launch data for code, zero otherwise (cache/format/artifact.h).
struct BuiltArtifact {
  uint16_t kind = 0;
  Digest digest;
  std::vector<uint8_t> payload;
  uint64_t entry = 0, tasks = 0, workspace_bytes = 0, features = 0;
  std::string backend;
};

/// A key whose head becomes `artifact`. `key_parts` is JSON, for explain.
struct BuiltHead {
  Digest key;
  Digest artifact;
  uint32_t generation = 0;
  std::string key_parts;
};

/// Everything to publish, in one batch.
struct BuildResult {
  std::vector<BuiltArtifact> artifacts;
  std::vector<BuiltHead> heads;
  uint64_t compilations = 0;  // code generations done
  std::string report;         // JSON: stages with milliseconds, kernels with schedule, error and time
};

/// Called from any thread: stage ("fuse", "compile", "verify"), how many are done, of how many, and what.
using ProgressFunction =
    std::function<void(std::string_view stage, uint64_t done, uint64_t total, std::string_view item)>;

/// Makes one runner per thread that verifies; null when no device of the target is there.
using RunnerFactory = std::function<Expected<std::unique_ptr<CandidateRunner>>(const Target&)>;

/// The way of a miss, top-down: wire → canonical graph → regions → plans → kernel specs → candidates → code →
/// verdict → artifacts. Uses the machine's cores. Nothing is returned that the verdict has not passed, except under
/// keys that say so: where no device of a target is there, code for it is compiled and its verdict deferred.
/// Errors: invalid_argument (the graph), unimplemented, internal (compiler or verdict, with the kernel); both name the op
/// (Status::op).
Expected<BuildResult> build(const BuildRequest& request, const RunnerFactory& make_runner,
                            const ProgressFunction& progress);

}  // namespace kiln
