#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/expected.h"
#include "cache/format/artifact_bytes.h"

namespace kiln {

struct StoreOptions {
  std::string directory;                             // created 0700 when absent
  uint64_t capacity_bytes = uint64_t{16} << 30;      // of artifact files on disk, for evict()
  uint64_t write_buffer_bytes = uint64_t{32} << 20;  // a file is written at the latest when this much is fresh
  /// The artifacts that a program or plan of this payload is of no use without. Without it each is of use alone.
  std::function<std::vector<Digest>(ArtifactKind kind, std::span<const uint8_t> payload)> needs = {};
};

/// What a key leads to. The generation counts from 0 (analytic pick); a key's highest generation is in force.
struct Head {
  Digest key;
  Digest artifact;
  uint32_t generation = 0;
  std::vector<uint8_t> canonical_key;  // the bytes `key` is the digest of; compared, so a collision is found
  std::string provenance;              // JSON, for people and tools; the store does not look into it
  uint64_t created_ms = 0;             // since 1970; set by publish
  std::vector<uint8_t> content;  // what the key is of, for explanations; only given to publish (CacheStore::content)

  bool operator==(const Head&) const = default;
};

struct PublishBatch {
  std::vector<Artifact> artifacts;
  std::vector<Head> heads;  // each names an artifact of this batch or one that is kept already
};

struct Entry {
  Digest digest;
  ArtifactKind kind = ArtifactKind::code;
  uint64_t payload_bytes = 0;
  uint64_t created_ms = 0;
  bool pinned = false;
  bool mapped = false;      // clients can see it
  std::vector<Head> heads;  // in force, without canonical_key
};

struct EntryFilter {
  std::optional<ArtifactKind> kind;
  size_t max_entries = SIZE_MAX;
};

struct Damage {
  Digest digest;
  std::string reason;
};

struct StoreStats {
  uint64_t artifacts = 0;
  uint64_t heads = 0;
  uint64_t files = 0;
  uint64_t file_bytes = 0;
  uint64_t index_generation = 0;
  uint64_t published = 0;   // artifacts written since open, repeats not counted
  uint64_t duplicates = 0;  // artifacts offered that were kept already
  uint64_t conflicts = 0;   // heads refused: their key and generation led elsewhere
  uint64_t evicted = 0;
  uint64_t files_scanned = 0;  // store files read through because no sidecar fitted
};

/// The persistent cache: artifacts and heads in RocksDB, and a published folder that clients map.
///
/// Ownership: one CacheStore per directory and machine at a time; a second open fails. Clients never open RocksDB.
/// Threading: any function from any thread at once. Calls are short except flush, evict, verify and clear.
/// Durability: what publish acknowledged survives the death of the process; the death of the machine may lose
/// the last of it, never part of a batch.
/// Errors: data_loss for damage, resource_exhausted for a full disk or a limit, unavailable when RocksDB
/// fails.
class CacheStore {
 public:
  /// Opens or creates. A damaged database is set aside as `db.damaged` and an empty one begun: `report` says
  /// so. Errors: failed_precondition when another process has it open; permission_denied for a directory of
  /// another user.
  static Expected<std::unique_ptr<CacheStore>> open(const StoreOptions& options);
  ~CacheStore();  // flushes

  /// Artifacts and heads in one atomic write. Artifacts with equal digest are kept once. The first
  /// publication of a key and generation stays: the same again is success, another artifact fails the whole
  /// batch. Errors: already_exists (conflict), not_found (a head names no artifact), invalid_argument,
  /// resource_exhausted.
  Status publish(const PublishBatch& batch);

  /// Returns once everything published before is visible in the mapped index. Costs a file.
  Status flush();

  /// Makes the published folder anew: for when somebody damaged or removed it under the store. Views that clients hold
  /// stay right.
  Status republish();

  /// The artifact itself; nothing when it is not kept. Errors: data_loss.
  Expected<std::optional<Artifact>> find(const Digest& artifact) const;
  /// The head in force; nothing when the key is unknown.
  Expected<std::optional<Head>> head(const Digest& key) const;
  /// All generations of a key, newest first.
  Expected<std::vector<Head>> history(const Digest& key) const;
  std::vector<Entry> list(const EntryFilter& filter = {}) const;

  /// What a key is of, as it was published with a head; nothing when it was not, or was too large.
  Expected<std::optional<std::vector<uint8_t>>> content(const Digest& key) const;

  /// Pinned artifacts are not evicted. Errors: not_found.
  Status pin(const Digest& artifact);
  Status unpin(const Digest& artifact);

  /// Drops the oldest files until at most `capacity_bytes` (of the options) remain; what is pinned in them, or was in
  /// use later than what goes, is written again first, with all that it needs. What lost something that it needs goes,
  /// too. Errors: resource_exhausted when what is pinned does not fit.
  Status evict();
  Status evict(uint64_t capacity_bytes);
  /// Forgets one artifact and the heads that lead to it. Not found is success.
  Status erase(const Digest& artifact);
  /// Forgets all generations of a key but the newest `count`, and the artifacts that nothing else leads to.
  Status keep_newest(const Digest& key, size_t count);
  /// Forgets everything.
  Status clear();

  /// Reads every artifact back, from RocksDB and from the published file, and recomputes checksum and digest.
  Expected<std::vector<Damage>> verify() const;

  StoreStats stats() const;
  /// One sentence about what opening had to repair; empty when nothing.
  const std::string& report() const;

 private:
  class Impl;
  explicit CacheStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> m_impl;
};

}  // namespace kiln
