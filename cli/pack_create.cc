#include "cli/pack_create.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hex.h"
#include "cache/pack/pack_writer.h"
#include "cache/sources/cache_directory.h"

namespace kiln::cli {
namespace {

Status out_of_shape() { return {StatusCode::internal, "the daemon's list of what to pack is out of shape"}; }

Expected<Artifact> read_artifact(CacheDirectory& cache, const Digest& digest, kiln_artifact_kind kind) {
  kiln_view view;
  if (const kiln_miss miss = cache.find_digest(digest, kind, view); miss != KILN_HIT) {
    return error(StatusCode::not_found, "artifact {} cannot be read: {}", digest.to_short(), kiln_miss_name(miss));
  }
  return artifact_of(view.header, {view.payload, view.header.payload_size});
}

Status add_artifact(PackWriter& writer, CacheDirectory& cache, const Json& listed) {
  const auto digest = Digest::from_hex(listed.value("digest", ""));
  if (!digest) return out_of_shape();
  KILN_ASSIGN_OR_RETURN(
      const Artifact artifact,
      read_artifact(cache, *digest, static_cast<kiln_artifact_kind>(listed.value("kind", uint16_t{0}))));
  return writer.add(artifact);
}

Status add_head(PackWriter& writer, Session& session, const Json& listed) {
  const auto key = Digest::from_hex(listed.value("key", "")), artifact = Digest::from_hex(listed.value("artifact", ""));
  if (!key || !artifact) return out_of_shape();
  KeyDescription description{listed.value("canonical_key", ""), listed.value("provenance", ""), {}};
  if (listed.value("has_content", false)) {
    KILN_ASSIGN_OR_RETURN(const Json answer, session.ask({.verb = protocol::Verb::content, .key = *key}));
    auto content = from_hex(answer.value("content", ""));
    if (!content) return out_of_shape();
    description.content = std::move(*content);
  }
  return writer.add(*key, *artifact, listed.value("generation", 0U), description);
}

}  // namespace

Expected<PackContents> create_pack(Session& session, const PackCreation& creation) {
  std::optional<SigningKey> key;
  if (!creation.sign.empty()) {
    KILN_ASSIGN_OR_RETURN(key, SigningKey::read(creation.sign));
  }
  KILN_ASSIGN_OR_RETURN(const Json listed, session.ask({.verb = protocol::Verb::pack_list,
                                                        .text = fmt::format("{}", fmt::join(creation.targets, ","))}));
  const Json artifacts = listed.value("artifacts", Json::array()), heads = listed.value("heads", Json::array());
  CacheDirectory cache(session.config().cache_directory);
  KILN_ASSIGN_OR_RETURN(PackWriter writer, PackWriter::create(creation.file, artifacts.size(), heads.size()));
  for (const Json& each : artifacts) KILN_RETURN_IF_ERROR(add_artifact(writer, cache, each));
  for (const Json& each : heads) KILN_RETURN_IF_ERROR(add_head(writer, session, each));
  KILN_RETURN_IF_ERROR(writer.finish(key ? &*key : nullptr));
  KILN_ASSIGN_OR_RETURN(const Pack pack, Pack::open(creation.file));
  return PackContents{pack.artifacts().size(), pack.heads().size(), pack.size(),
                      pack.signer() ? pack.signer()->to_short() : ""};
}

}  // namespace kiln::cli
