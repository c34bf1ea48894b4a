#include "service/build_messages.h"

namespace kiln {

BuildRequest request_of(const protocol::Build& build, const std::string& cache_directory) {
  BuildRequest request{build.graph, {}, build.afresh ? "" : cache_directory};
  request.tuning = !build.tune ? Tuning::off : build.again ? Tuning::again : Tuning::all;
  for (const protocol::TargetName& target : build.targets)
    request.targets.push_back({target.backend, target.name, target.driver, target.is_deterministic, target.threads});
  request.sizes_vary = build.sizes_vary;
  request.name = build.name;
  request.sizes = build.sizes;
  if (!build.afresh && !build.again) request.program_keys = build.keys;
  return request;
}

protocol::Built answer_of(const BuildResult& result, bool carries_them) {
  protocol::Built built;
  for (const BuiltHead& head : result.heads) built.heads.push_back({head.key, head.artifact, head.generation});
  if (!carries_them) return built;
  for (const BuiltArtifact& each : result.artifacts) {
    built.carried.push_back({each.kind, each.digest, each.payload, each.entry, each.tasks, each.workspace_bytes,
                             each.features, each.backend});
  }
  return built;
}

}  // namespace kiln
