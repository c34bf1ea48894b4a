#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/expected.h"
#include "jit/build/artifact.h"
#include "jit/build/environment.h"

namespace kiln {

/// Whether plans of regions and candidates of kernels race that have not raced on this machine, before they are linked.
enum class Tuning : uint8_t {
  off,
  background,  // some of them, for about limits::k_background_tuning_ms: a later build goes on
  all,
  again,  // all, and those that have raced too
};

/// What a compile worker is asked.
struct BuildRequest {
  std::vector<uint8_t> graph_wire;  // every symbol bound, but where `sizes` are given
  std::vector<Target> targets;      // one program each
  std::string cache_directory;      // read through the mapped cache: what is there is not built again
  Tuning tuning = Tuning::off;
  /// The programs', one for each target, or none: for whoever looks for them elsewhere before he has them built.
  std::vector<Digest> program_keys = {};
  /// Other sizes of the graph are likely to be asked for, too: kernels that can take sizes from their launches do.
  bool sizes_vary = false;
  std::string name = {};  // what the client calls the graph
  /// One for each symbol of the graph: a program for many sizes is asked for, these and others around them (size_ranges.h).
  std::vector<int64_t> sizes = {};
};

/// The way of a miss, top-down: wire → canonical graph → regions → plans → kernel specs → candidates → code →
/// verdict → artifacts. Uses as many threads as `environment` gives it. Nothing is returned that the verdict has not
/// passed, except under keys that say so: where no device of a target is there, code for it is compiled and its verdict
/// deferred.
/// Errors: invalid_argument (the graph), unimplemented, internal (compiler or verdict, with the kernel); both name the op
/// (Status::op).
Expected<BuildResult> build(const BuildRequest& request, const BackendFinder& find_backend,
                            const BuildEnvironment& environment);

}  // namespace kiln
