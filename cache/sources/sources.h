#pragma once

#include <array>
#include <string>

#include "cache/sources/cache_directory.h"
#include "cache/sources/mounted_packs.h"

namespace kiln {

/// All sources of a process, asked in their order: the cache directory, then packs.
class Sources final : public Source {
 public:
  Sources(const std::string& cache_directory, const PackFolders& folders);

  /// The miss is the cache directory's where nobody has it.
  kiln_miss find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) override;
  kiln_miss find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) override;

  CacheDirectory& directory() { return m_directory; }
  const MountedPacks& packs() const { return m_packs; }

 private:
  CacheDirectory m_directory;
  MountedPacks m_packs;
  const std::array<Source*, 2> m_rows = {&m_directory, &m_packs};
};

}  // namespace kiln
