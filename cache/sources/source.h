#pragma once

#include "base/digest.h"
#include "cache/reader/reader.h"

namespace kiln {

/// Where entries come from besides a build.
///
/// What it gives was checked against what proves it here: for the cache directory its owner and checksums, for a pack the
/// signature of somebody trusted. Views stay while the source does.
/// Threading: any function from any thread at once. Errors: a miss is a value with its reason, and damage is a miss.
class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  /// What a key leads to; of another kind than `kind` it is absent. `view` is written on a hit only.
  virtual kiln_miss find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) = 0;
  /// An artifact by its own digest.
  virtual kiln_miss find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) = 0;
  /// Makes a code artifact that was found here executable; one that was not is absent.
  virtual kiln_miss map_code(const kiln_view& view, const uint8_t*& code) = 0;
};

}  // namespace kiln
