#include "service/built_artifact.h"

#include <utility>

namespace kiln {

BuiltArtifact built_artifact(const Digest& digest, Artifact artifact) {
  const LaunchData& launch = artifact.launch;
  return {static_cast<uint16_t>(artifact.kind),
          digest,
          std::move(artifact.payload),
          launch.entry,
          launch.tasks,
          launch.workspace_bytes,
          launch.features,
          launch.backend};
}

Artifact artifact_of(const BuiltArtifact& built) {
  return {static_cast<ArtifactKind>(built.kind),
          {built.entry, built.tasks, built.workspace_bytes, built.features, built.backend},
          built.payload};
}

}  // namespace kiln
