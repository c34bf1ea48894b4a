#include "jit/exported/export_writer.h"

#include <map>

#include "cache/pack/pack_writer.h"

namespace kiln {

std::string_view export_key() { return R"({"level":"export"})"; }

Status write_export(const std::string& path, const ExportManifest& manifest, std::vector<Artifact> artifacts) {
  const std::string json = to_json(manifest);
  artifacts.push_back({ArtifactKind::exported, {}, {json.begin(), json.end()}});
  const Digest head = artifact_digest(artifacts.back());
  std::map<Digest, const Artifact*> by_digest;
  for (const Artifact& each : artifacts) by_digest.emplace(artifact_digest(each), &each);
  KILN_ASSIGN_OR_RETURN(PackWriter writer, PackWriter::create(path, by_digest.size(), 1));
  for (const auto& [digest, artifact] : by_digest) KILN_RETURN_IF_ERROR(writer.add(*artifact));
  KILN_RETURN_IF_ERROR(writer.add(digest_of(export_key()), head, 0, {std::string(export_key()), "", {}}));
  return writer.finish(nullptr);
}

}  // namespace kiln
