#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>

#include "base/expected.h"
#include "cache/pack/pack.h"
#include "cache/store/store.h"

namespace kiln {

/// An artifact of the store and all that it needs to run.
using ClosureOf = std::function<std::unordered_set<Digest>(const Digest& root, ArtifactKind kind)>;

/// What a pack of this build's entries holds: {"artifacts": [{"digest", "kind"}], "heads":
/// [{"key", "artifact", "generation", "canonical_key", "provenance", "has_content"}]}, both ascending. `targets`: with
/// commas between; empty: all. Captures are of no target and go with any.
nlohmann::json entries_to_pack(const CacheStore& store, std::string_view targets, const ClosureOf& closure_of);

/// A pack whose signer is trusted, on its way into the store.
class PackInstallation {
 public:
  /// `request`: {"path", "trust", "trust_captures"}, as of PackFolders (cache/sources/mounted_packs.h).
  /// Errors: permission_denied when its signer is not trusted, data_loss when anything in it is damaged.
  static Expected<PackInstallation> open(std::string_view request);

  /// Gives the artifacts in batches that the store takes, then the heads: what may come from this signer.
  Status give(const std::function<Status(PublishBatch batch)>& publish) const;
  /// How many "artifacts" are taken, of which "kinds", and how many "keys"; "captures_left_out" since the "signer" is not trusted
  /// for them.
  nlohmann::json to_json() const;

 private:
  PackInstallation(Pack pack, bool may_have_captures)
      : m_pack(std::move(pack)), m_may_have_captures(may_have_captures) {}
  bool is_taken(const PackedArtifact& artifact) const;

  Pack m_pack;
  bool m_may_have_captures;
};

}  // namespace kiln
