#include "service/pack_entries.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/build_id.h"
#include "base/limits.h"
#include "base/split.h"
#include "cache/pack/pack_trust.h"

namespace kiln {
namespace {

using nlohmann::json;

constexpr size_t k_batch_bytes = size_t{64} << 20;

/// Whether this build looks for such a key, for one of the targets.
bool is_wanted(const json& parts, const std::vector<std::string>& targets) {
  if (!parts.is_object()) return false;
  const std::string backend = parts.value("backend", ""), target = parts.value("target", "");
  const auto generator = backend.empty() ? generator_build_id() : generator_build_id(backend);
  return parts.value("generator", "") == generator &&
         (targets.empty() || target.empty() || std::ranges::find(targets, target) != targets.end());
}

json head_json(const Head& head, bool has_content) {
  return {{"key", head.key.to_hex()},
          {"artifact", head.artifact.to_hex()},
          {"generation", head.generation},
          {"canonical_key", std::string(head.canonical_key.begin(), head.canonical_key.end())},
          {"provenance", head.provenance},
          {"has_content", has_content}};
}

}  // namespace

json entries_to_pack(const CacheStore& store, std::string_view targets, const ClosureOf& closure_of) {
  const std::vector<std::string> wanted = split(targets, ',');
  std::map<Digest, ArtifactKind> kept;
  std::set<Digest> artifacts;
  std::map<Digest, json> heads;
  for (const Entry& entry : store.list()) {
    kept.emplace(entry.digest, entry.kind);
    for (const Head& listed : entry.heads) {
      if (!is_wanted(json::parse(listed.provenance, nullptr, false), wanted)) continue;
      const auto head = store.head(listed.key);
      if (!head.ok() || !*head || (*head)->artifact != entry.digest) continue;
      const auto content = store.content(listed.key);
      heads.emplace(listed.key, head_json(**head, content.ok() && content->has_value()));
      const auto closure = closure_of(entry.digest, entry.kind);
      artifacts.insert(closure.begin(), closure.end());
    }
  }
  json packed = {{"artifacts", json::array()}, {"heads", json::array()}};
  for (const Digest& artifact : artifacts) {
    const auto entry = kept.find(artifact);
    if (entry == kept.end()) continue;  // evicted: what needs it is a miss with the pack as it is without
    packed["artifacts"].push_back({{"digest", artifact.to_hex()}, {"kind", static_cast<uint16_t>(entry->second)}});
  }
  for (auto& [key, head] : heads) packed["heads"].push_back(std::move(head));
  return packed;
}

Expected<PackInstallation> PackInstallation::open(std::string_view request) {
  const json asked = json::parse(request, nullptr, false);
  if (!asked.is_object()) return invalid_argument("install is asked for with no JSON object");
  PackTrust trust;
  KILN_ASSIGN_OR_RETURN(trust.keys, TrustedKeys::read(asked.value("trust", "")));
  KILN_ASSIGN_OR_RETURN(trust.capture_keys, TrustedKeys::read(asked.value("trust_captures", "")));
  KILN_ASSIGN_OR_RETURN(Pack pack, Pack::open(asked.value("path", "")));
  KILN_ASSIGN_OR_RETURN(const bool may_have_captures, trust.allows_captures(pack));
  KILN_RETURN_IF_ERROR(pack.check_all());
  return PackInstallation(std::move(pack), may_have_captures);
}

bool PackInstallation::is_taken(const PackedArtifact& artifact) const {
  return m_may_have_captures || artifact.kind != KILN_ARTIFACT_CAPTURE;
}

Status PackInstallation::give(const std::function<Status(PublishBatch batch)>& publish) const {
  PublishBatch batch;
  size_t bytes = 0;
  const auto added = [&](size_t more) -> Status {
    bytes += more;
    const bool is_full = bytes >= k_batch_bytes || batch.artifacts.size() == limits::k_batch_artifacts ||
                         batch.heads.size() == limits::k_batch_heads;
    if (!is_full) return {};
    bytes = 0;
    return publish(std::exchange(batch, {}));
  };
  for (const PackedArtifact& packed : m_pack.artifacts()) {
    if (!is_taken(packed)) continue;
    KILN_ASSIGN_OR_RETURN(const auto encoded, m_pack.read(packed));
    KILN_ASSIGN_OR_RETURN(Artifact artifact, decode_artifact(encoded, digest_in(packed.digest)));
    batch.artifacts.push_back(std::move(artifact));
    KILN_RETURN_IF_ERROR(added(packed.length));
  }
  // Heads come last: what a key leads to is there before the key.
  for (const PackedHead& packed : m_pack.heads()) {
    const Digest artifact = digest_in(packed.artifact);
    if (!is_taken(*m_pack.artifact(artifact))) continue;
    KILN_ASSIGN_OR_RETURN(KeyDescription description, m_pack.describe(packed));
    batch.heads.push_back({.key = digest_in(packed.key),
                           .artifact = artifact,
                           .generation = packed.generation,
                           .canonical_key = {description.canonical_key.begin(), description.canonical_key.end()},
                           .provenance = std::move(description.provenance),
                           .content = std::move(description.content)});
    KILN_RETURN_IF_ERROR(added(packed.length));
  }
  return publish(std::move(batch));
}

json PackInstallation::to_json() const {
  size_t taken = 0;
  std::map<std::string, size_t> kinds;
  for (const PackedArtifact& artifact : m_pack.artifacts()) {
    if (!is_taken(artifact)) continue;
    ++taken;
    ++kinds[std::string(to_string(static_cast<ArtifactKind>(artifact.kind)))];
  }
  return {{"artifacts", taken},
          {"kinds", kinds},
          {"captures_left_out", m_pack.artifacts().size() - taken},
          {"keys", std::ranges::count_if(
                       m_pack.heads(),
                       [&](const PackedHead& head) { return is_taken(*m_pack.artifact(digest_in(head.artifact))); })},
          {"signer", m_pack.signer()->to_short()}};
}

}  // namespace kiln
