#include "cache/sources/pack_source.h"

namespace kiln {

kiln_miss PackSource::find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) {
  const PackedHead* head = m_pack.head(key);
  if (head == nullptr) return KILN_MISS_ABSENT;
  const kiln_miss miss = take(*m_pack.artifact(digest_in(head->artifact)), kind, view);
  if (miss == KILN_HIT) view.generation = head->generation;
  return miss;
}

kiln_miss PackSource::find_digest(const Digest& digest, kiln_artifact_kind kind, kiln_view& view) {
  const PackedArtifact* artifact = m_pack.artifact(digest);
  return artifact == nullptr ? KILN_MISS_ABSENT : take(*artifact, kind, view);
}

kiln_miss PackSource::take(const PackedArtifact& artifact, kiln_artifact_kind kind, kiln_view& view) {
  if (artifact.kind != kind) return KILN_MISS_ABSENT;
  if (kind == KILN_ARTIFACT_CAPTURE && !m_may_have_captures) return KILN_MISS_OWNER;
  const auto bytes = m_pack.read(artifact);
  if (!bytes.ok()) return bytes.status().code() == StatusCode::data_loss ? KILN_MISS_CORRUPT : KILN_MISS_EVICTED;
  const kiln_miss offered = m_copies.offer(*bytes);
  return offered == KILN_HIT ? m_copies.find_digest(digest_in(artifact.digest), kind, view) : offered;
}

}  // namespace kiln
