#include "cache/sources/cache_directory.h"

#include <cstring>

#include "base/process_mutex.h"

namespace kiln {

CacheDirectory::CacheDirectory(const std::string& path) : m_reader(kiln_reader_open(path.c_str())) {}
CacheDirectory::~CacheDirectory() { kiln_reader_close(m_reader); }

kiln_miss CacheDirectory::find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) {
  const kiln_miss miss = kiln_reader_find_key(m_reader, key.bytes.data(), kind, &view);
  if (miss == KILN_HIT) return miss;
  Digest artifact;
  {
    const std::scoped_lock lock(process_mutex());
    const auto head = m_carried_heads.find(key);
    if (head == m_carried_heads.end()) return miss;
    artifact = head->second;
  }
  return find_digest(artifact, kind, view);
}

kiln_miss CacheDirectory::find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) {
  return kiln_reader_find_digest(m_reader, artifact.bytes.data(), kind, &view);
}

kiln_miss CacheDirectory::offer(std::span<const uint8_t> artifact) {
  kiln_artifact_header header;
  std::memcpy(&header, artifact.data(), sizeof header);
  return kiln_reader_adopt(m_reader, &header, artifact.data() + header.payload_offset);
}

Status CacheDirectory::offer(const std::vector<CarriedArtifact>& artifacts, const std::vector<CarriedHead>& heads) {
  for (const auto& [digest, artifact] : artifacts) {
    if (artifact_digest(artifact) != digest) {
      return error(StatusCode::data_loss, "artifact {} was carried with other bytes", digest.to_short());
    }
    KILN_ASSIGN_OR_RETURN(const auto bytes, encode_artifact(artifact, digest, sizeof(kiln_artifact_header)));
    if (offer(bytes) != KILN_HIT) {
      return error(StatusCode::resource_exhausted, "no memory for artifact {}", digest.to_short());
    }
  }
  const std::scoped_lock lock(process_mutex());
  for (const auto& [key, artifact] : heads) m_carried_heads.insert_or_assign(key, artifact);
  return {};
}

kiln_miss CacheDirectory::map_code(const kiln_view& view, const uint8_t*& code) {
  return kiln_reader_map_code(m_reader, &view, &code);
}

}  // namespace kiln
