#include "cache/sources/directory_entries.h"

#include "cache/sources/cache_directory.h"

namespace kiln {

/// The reader keeps what it reads until it is closed: each search has its own.
std::vector<SourceEntry> DirectoryEntries::find(std::span<const Digest> keys, ArtifactKind kind, Patience&) {
  CacheDirectory directory(m_path);
  std::vector<SourceEntry> found;
  for (const Digest& key : keys) {
    kiln_view view;
    if (directory.find_key(key, static_cast<kiln_artifact_kind>(kind), view) != KILN_HIT) continue;
    Artifact artifact = artifact_of(view.header, {view.payload, view.header.payload_size});
    const Digest digest = artifact_digest(artifact);
    found.push_back({key, view.generation, digest, std::move(artifact)});
  }
  return found;
}

}  // namespace kiln
