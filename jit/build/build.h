#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/expected.h"
#include "jit/build/artifact.h"
#include "jit/build/environment.h"

namespace kiln {

/// What a compile worker is asked.
struct BuildRequest {
  std::vector<uint8_t> graph_wire;  // every symbol bound
  std::vector<Target> targets;      // one program each
  std::string cache_directory;      // read through the mapped cache: what is there is not built again
  bool tune = false;                // race candidates of what has not raced on this machine, and build with the winners
};

/// Everything to publish, in one batch.
struct BuildResult {
  std::vector<BuiltArtifact> artifacts;
  std::vector<BuiltHead> heads;
  uint64_t compilations = 0;  // code generations done
  std::string report;         // JSON: stages with milliseconds, kernels with schedule, error and time
};

/// The way of a miss, top-down: wire → canonical graph → regions → plans → kernel specs → candidates → code →
/// verdict → artifacts. Uses the machine's cores. Nothing is returned that the verdict has not passed, except under
/// keys that say so: where no device of a target is there, code for it is compiled and its verdict deferred.
/// Errors: invalid_argument (the graph), unimplemented, internal (compiler or verdict, with the kernel); both name the op
/// (Status::op).
Expected<BuildResult> build(const BuildRequest& request, const BackendFinder& find_backend,
                            const BuildEnvironment& environment);

}  // namespace kiln
