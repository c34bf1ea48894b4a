#pragma once

#include "cache/pack/pack.h"
#include "cache/sources/cache_directory.h"

namespace kiln {

/// One pack whose signer, or owner, its user has found to be trusted: read where it lies, artifact by artifact, as it is
/// asked for.
class PackSource final : public Source {
 public:
  /// `copies`: where what was read is kept.
  PackSource(Pack pack, bool may_have_captures, CacheDirectory& copies)
      : m_pack(std::move(pack)), m_may_have_captures(may_have_captures), m_copies(copies) {}

  kiln_miss find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) override;
  kiln_miss find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) override;
  kiln_miss map_code(const kiln_view& view, const uint8_t*& code) override { return m_copies.map_code(view, code); }

 private:
  kiln_miss take(const PackedArtifact& artifact, kiln_artifact_kind kind, kiln_view& view);

  const Pack m_pack;
  const bool m_may_have_captures;
  CacheDirectory& m_copies;
};

}  // namespace kiln
