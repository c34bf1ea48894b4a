#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "cache/format/artifact_bytes.h"

namespace kiln {

/// What a key leads to, in bytes of its own.
struct SourceEntry {
  Digest key;
  uint32_t generation = 0;
  Digest digest;  // the artifact's
  Artifact artifact;
  /// What the artifact is of no use without, where the source keeps it beside.
  std::vector<std::pair<Digest, Artifact>> needs = {};
  std::string canonical_key = {}, provenance = {};  // for whoever publishes it; empty where the source need not know
  bool is_proven = true;  // false, of code alone: it is a candidate, and a verdict here is all that can prove it
};

/// How long whoever asks still waits for sources that are elsewhere: each takes off what it took.
struct Patience {
  using Duration = std::chrono::milliseconds;
  Duration left{0};
};

/// Where whoever builds gets entries from besides a build: many keys at a time, and nothing stays with the source.
///
/// What it gives was checked against what proves it here, as a Source's views are (cache/sources/source.h), but for what says
/// that it is not proven.
/// Threading: any function from any thread at once. Errors: what is damaged, or not to be believed, is not there.
class EntrySource {
 public:
  EntrySource() = default;
  EntrySource(const EntrySource&) = delete;
  EntrySource& operator=(const EntrySource&) = delete;
  virtual ~EntrySource() = default;

  /// What there is of `keys`; what a key leads to of another kind than `kind` is absent.
  virtual std::vector<SourceEntry> find(std::span<const Digest> keys, ArtifactKind kind, Patience& patience) = 0;

  /// Takes an entry that was built here, where others may take it from; without a wait, and without a promise.
  virtual void offer(SourceEntry&& /*entry*/) {}
  /// Whether such an entry would be taken.
  virtual bool takes(const Digest& /*key*/, ArtifactKind /*kind*/, uint32_t /*generation*/) { return false; }
};

}  // namespace kiln
