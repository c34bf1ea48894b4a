#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/expected.h"
#include "cache/store/store.h"

namespace kiln {

/// Where clients find an artifact: in pub/<file>.sst.
struct Location {
  uint64_t file = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t checksum = 0;
};

/// What the store knows of every artifact and head, in memory. The records in the column family `meta` say
/// the same and survive; locations are derived. Not synchronised: the store's mutex is held.
class Catalog {
 public:
  struct ArtifactState {
    ArtifactKind kind = ArtifactKind::code;
    uint64_t payload_bytes = 0;
    uint64_t created_ms = 0;
    bool pinned = false;
    std::optional<Location> location;  // nothing while it is only in RocksDB's log and memory
    std::vector<Digest> keys;          // whose head in force it is
  };
  struct HeadState {
    Digest artifact;
    uint32_t generation = 0;
  };
  /// What the index does not show yet.
  struct Changes {
    std::vector<Digest> artifacts;
    std::vector<Digest> removed_artifacts;
    std::vector<Digest> removed_keys;
  };

  const std::unordered_map<Digest, ArtifactState>& artifacts() const { return m_artifacts; }
  const std::unordered_map<Digest, HeadState>& heads() const { return m_heads; }
  const ArtifactState* artifact(const Digest& digest) const;
  const HeadState* head(const Digest& key) const;

  void add_artifact(const Digest& digest, ArtifactState state);
  /// The keys that led to it have no head afterwards.
  void remove_artifact(const Digest& digest);
  void set_head(const Digest& key, HeadState head);
  void set_location(const Digest& digest, const Location& location);
  void set_pinned(const Digest& digest, bool pinned);
  void clear();

  Changes take_changes();

 private:
  std::unordered_map<Digest, ArtifactState> m_artifacts;
  std::unordered_map<Digest, HeadState> m_heads;
  Changes m_changes;
};

/// The records of `meta`. Keys: 'a' digest, 'p' digest (pin), 'h' key generation (big endian, so that they
/// sort), 'g' key (what the key is of).
namespace records {

std::string artifact_key(const Digest& digest);
std::string pin_key(const Digest& digest);
std::string content_key(const Digest& key);
std::string head_key(const Digest& key, uint32_t generation);
std::string head_prefix(const Digest& key);

std::string encode_artifact(const Catalog::ArtifactState& state);
std::string encode_head(const Head& head);

/// Nothing when the record is out of shape.
std::optional<Digest> digest_in(std::string_view key);
std::optional<Catalog::ArtifactState> decode_artifact(std::string_view value);
std::optional<Head> decode_head(std::string_view key, std::string_view value);

}  // namespace records
}  // namespace kiln
