#include "jit/build/artifact.h"

namespace kiln {

BuiltArtifact named_artifact(ArtifactKind kind, const LaunchData& launch, std::vector<uint8_t> payload) {
  Artifact content{kind, launch, std::move(payload)};
  const Digest digest = artifact_digest(content);
  return {static_cast<uint16_t>(kind),
          digest,
          std::move(content.payload),
          launch.entry,
          launch.tasks,
          launch.workspace_bytes,
          launch.features,
          launch.backend};
}

BuiltArtifact code_artifact(const Image& image, const std::string& backend) {
  return named_artifact(ArtifactKind::code, {image.entry, image.tasks, image.workspace_bytes, image.features, backend},
                        image.code);
}

Image image_in(const BuiltArtifact& code) {
  return {code.payload, code.entry, code.tasks, code.workspace_bytes, code.features};
}

}  // namespace kiln
