#pragma once

#include <array>
#include <string>

#include "cache/sources/cache_directory.h"
#include "cache/sources/mounted_packs.h"

namespace kiln {

/// All sources of a process, asked in their order: the cache directory, then packs, then the shared directory.
class Sources final : public Source {
 public:
  /// `shared`: a cache directory that is only read; empty: none.
  Sources(const std::string& cache_directory, const PackFolders& folders, const std::string& shared = {});

  /// The miss is the cache directory's where nobody has it.
  kiln_miss find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) override;
  kiln_miss find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) override;

  kiln_miss map_code(const kiln_view& view, const uint8_t*& code) override;

  CacheDirectory& directory() { return m_directory; }
  const MountedPacks& packs() const { return m_packs; }

 private:
  CacheDirectory m_directory;
  MountedPacks m_packs;
  CacheDirectory m_shared;
  const std::array<Source*, 3> m_rows = {&m_directory, &m_packs, &m_shared};
};

}  // namespace kiln
