#include "cache/fleet/sealed_entry.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cache/pack/pack_writer.h"

namespace kiln {

Expected<std::vector<uint8_t>> seal(const SourceEntry& entry, const SigningKey* signer) {
  std::map<Digest, const Artifact*> artifacts = {{entry.digest, &entry.artifact}};
  for (const auto& [digest, artifact] : entry.needs) artifacts.emplace(digest, &artifact);
  KILN_ASSIGN_OR_RETURN(PackWriter writer, PackWriter::create_in_memory(artifacts.size(), 1));
  for (const auto& [digest, artifact] : artifacts) KILN_RETURN_IF_ERROR(writer.add(*artifact));
  KILN_RETURN_IF_ERROR(
      writer.add(entry.key, entry.digest, entry.generation, {entry.canonical_key, entry.provenance, {}}));
  return writer.finish_in_memory(signer);
}

Expected<SourceEntry> open_sealed(std::vector<uint8_t> bytes, const Digest& key, ArtifactKind kind,
                                  const PackTrust& trust, bool takes_candidates) {
  KILN_ASSIGN_OR_RETURN(const Pack pack, Pack::in_memory(std::move(bytes), "entry " + key.to_short()));
  const Expected<bool> may_have_captures = trust.allows_captures(pack);
  const bool is_proven = may_have_captures.ok();
  if (!is_proven && !(takes_candidates && kind == ArtifactKind::code)) return may_have_captures.status();
  const PackedHead* head = pack.head(key);
  if (head == nullptr) return error(StatusCode::data_loss, "{}: what is kept there is another key's", pack.path());
  SourceEntry entry{.key = key,
                    .generation = is_proven ? head->generation : 0,
                    .digest = digest_in(head->artifact),
                    .is_proven = is_proven};
  for (const PackedArtifact& packed : pack.artifacts()) {
    if (packed.kind == KILN_ARTIFACT_CAPTURE && !(is_proven && *may_have_captures)) {
      return error(StatusCode::permission_denied, "{}: its signer is not trusted for captures", pack.path());
    }
    const Digest digest = digest_in(packed.digest);
    KILN_ASSIGN_OR_RETURN(const auto encoded, pack.read(packed));
    KILN_ASSIGN_OR_RETURN(Artifact artifact, decode_artifact(encoded, digest));
    if (digest != entry.digest) {
      entry.needs.emplace_back(digest, std::move(artifact));
    } else if (artifact.kind == kind) {
      entry.artifact = std::move(artifact);
    } else {
      return error(StatusCode::not_found, "{}: it is of another kind", pack.path());
    }
  }
  KILN_ASSIGN_OR_RETURN(KeyDescription description, pack.describe(*head));
  entry.canonical_key = std::move(description.canonical_key);
  entry.provenance = std::move(description.provenance);
  return entry;
}

}  // namespace kiln
