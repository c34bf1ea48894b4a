#include "cache/sources/mounted_packs.h"

namespace kiln {

kiln_miss MountedPacks::find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) {
  TrustedPacks::Bytes bytes;
  const kiln_miss miss = m_packs.read_key(key, kind, bytes);
  return miss == KILN_HIT ? keep(bytes, kind, view) : miss;
}

kiln_miss MountedPacks::find_digest(const Digest& digest, kiln_artifact_kind kind, kiln_view& view) {
  TrustedPacks::Bytes bytes;
  const kiln_miss miss = m_packs.read_digest(digest, kind, bytes);
  return miss == KILN_HIT ? keep(bytes, kind, view) : miss;
}

kiln_miss MountedPacks::keep(const TrustedPacks::Bytes& bytes, kiln_artifact_kind kind, kiln_view& view) {
  kiln_miss miss = m_copies.offer(bytes.artifact);
  if (miss == KILN_HIT) miss = m_copies.find_digest(bytes.digest, kind, view);
  if (miss == KILN_HIT) view.generation = bytes.generation;
  return miss;
}

}  // namespace kiln
