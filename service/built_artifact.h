#pragma once

#include "cache/format/artifact_bytes.h"
#include "jit/build/artifact.h"

namespace kiln {

/// An artifact as builds give it, of this name, and as caches keep it.
BuiltArtifact built_artifact(const Digest& digest, Artifact artifact);
Artifact artifact_of(const BuiltArtifact& built);

}  // namespace kiln
