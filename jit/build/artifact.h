#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/digest.h"
#include "cache/format/artifact_bytes.h"

namespace kiln {

/// An immutable result: launch data for code, zero otherwise (cache/format/artifact.h).
struct BuiltArtifact {
  uint16_t kind = 0;
  Digest digest;
  std::vector<uint8_t> payload;
  uint64_t entry = 0, tasks = 0, workspace_bytes = 0, features = 0;
  std::string backend;
};

/// A key whose head becomes `artifact`. `key_parts` is JSON, for explain; the texts are for people: `name` is what they know it
/// by.
struct BuiltHead {
  Digest key;
  Digest artifact;
  uint32_t generation = 0;
  std::string key_parts;
  std::string name;
  std::string not_judged = {};  // of a program: why its own verdict is missing, or from where on
  std::string schedule = {};    // of code that this build compiled: the choices that it was made with
  std::string spec = {};        // of code: kernel_text() of what it computes
};

/// Everything to publish, in one batch.
struct BuildResult {
  std::vector<BuiltArtifact> artifacts;
  std::vector<BuiltHead> heads;
  uint64_t compilations = 0;  // code generations done
  uint32_t raced = 0;         // kernels whose candidates raced, and regions whose plans did
  bool is_tuned = true;       // every kernel and region of the programs that may race has
  std::string report;         // JSON: stages with milliseconds, kernels with schedule, error and time
};

/// The artifact, named by its content.
BuiltArtifact named_artifact(ArtifactKind kind, const LaunchData& launch, std::vector<uint8_t> payload);

BuiltArtifact code_artifact(const Image& image, const std::string& backend);
/// The other way round.
Image image_in(const BuiltArtifact& code);

}  // namespace kiln
