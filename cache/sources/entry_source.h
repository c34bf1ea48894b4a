#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.h"
#include "cache/format/artifact_bytes.h"

namespace kiln {

/// What a key leads to, in bytes of its own.
struct FoundEntry {
  Digest key;
  uint32_t generation = 0;
  Digest digest;  // the artifact's
  Artifact artifact;
};

/// Where whoever builds gets entries from besides a build: many keys at a time, and nothing stays with the source.
///
/// What it gives was checked against what proves it here, as a Source's views are (cache/sources/source.h).
/// Threading: any function from any thread at once. Errors: what is damaged, or not to be believed, is not there.
class EntrySource {
 public:
  EntrySource() = default;
  EntrySource(const EntrySource&) = delete;
  EntrySource& operator=(const EntrySource&) = delete;
  virtual ~EntrySource() = default;

  /// What there is of `keys`; what a key leads to of another kind than `kind` is absent.
  virtual std::vector<FoundEntry> find(std::span<const Digest> keys, ArtifactKind kind) = 0;
};

}  // namespace kiln
