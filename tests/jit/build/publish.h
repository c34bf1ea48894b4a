#pragma once

#include "cache/store/store.h"
#include "jit/build/build.h"

namespace kiln {

/// What the daemon would publish of a build.
inline PublishBatch batch_of(const BuildResult& result) {
  PublishBatch batch;
  for (const BuiltArtifact& built : result.artifacts) {
    batch.artifacts.push_back({static_cast<ArtifactKind>(built.kind),
                               {built.entry, built.tasks, built.workspace_bytes, built.features, built.backend},
                               built.payload});
  }
  for (const BuiltHead& head : result.heads) {
    Head& added = batch.heads.emplace_back();
    added.key = head.key;
    added.artifact = head.artifact;
    added.generation = head.generation;
    added.canonical_key.assign(head.key_parts.begin(), head.key_parts.end());
  }
  return batch;
}

}  // namespace kiln
