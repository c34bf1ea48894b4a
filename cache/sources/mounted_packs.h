#pragma once

#include <string>
#include <vector>

#include "cache/sources/cache_directory.h"
#include "cache/sources/trusted_packs.h"

namespace kiln {

/// Packs used in place: what is read of them lies beside what this process read of its cache directory.
class MountedPacks final : public Source {
 public:
  /// `copies`: where what was read is kept.
  MountedPacks(const PackFolders& folders, CacheDirectory& copies) : m_packs(folders), m_copies(copies) {}
  /// Of one pack, as TrustedPacks has it.
  MountedPacks(Pack pack, CacheDirectory& copies) : m_packs(std::move(pack)), m_copies(copies) {}

  kiln_miss find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) override;
  kiln_miss find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) override;
  kiln_miss map_code(const kiln_view& view, const uint8_t*& code) override { return m_copies.map_code(view, code); }

  size_t count() const { return m_packs.count(); }
  /// One sentence each.
  const std::vector<std::string>& refusals() const { return m_packs.refusals(); }

 private:
  kiln_miss keep(const TrustedPacks::Bytes& bytes, kiln_artifact_kind kind, kiln_view& view);

  TrustedPacks m_packs;
  CacheDirectory& m_copies;
};

}  // namespace kiln
