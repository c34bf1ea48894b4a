#include "cache/sources/trusted_packs.h"

#include <algorithm>
#include <filesystem>

#include "base/limits.h"
#include "base/split.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// The packs of a folder by name, so that every process looks into them in one order.
std::vector<std::string> packs_in(const std::string& folder, std::vector<std::string>& refusals) {
  std::vector<std::string> paths;
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    if (at->path().extension() == ".kpack") paths.push_back(at->path());
  }
  if (failure) refusals.push_back(fmt::format("packs.path {}: {}", folder, failure.message()));
  std::ranges::sort(paths);
  return paths;
}

TrustedKeys read_keys(const std::string& folder, std::vector<std::string>& refusals) {
  auto keys = TrustedKeys::read(folder);
  if (!keys.ok()) {
    refusals.push_back(keys.status().message());
    return {};
  }
  refusals.insert(refusals.end(), keys->unreadable().begin(), keys->unreadable().end());
  return std::move(*keys);
}

}  // namespace

TrustedPacks::TrustedPacks(const PackFolders& folders) {
  if (folders.path.empty()) return;
  const PackTrust trust{read_keys(folders.trust, m_refusals), read_keys(folders.trust_captures, m_refusals)};
  for (const std::string& folder : split(folders.path, ':')) mount_folder(folder, trust);
}

void TrustedPacks::mount_folder(const std::string& folder, const PackTrust& trust) {
  for (const std::string& path : packs_in(folder, m_refusals)) {
    if (m_packs.size() == limits::k_mounted_packs) {
      m_refusals.push_back(fmt::format("{}: more than {} packs", path, limits::k_mounted_packs));
      return;
    }
    if (const Status status = mount(path, trust); !status.ok()) m_refusals.push_back(status.message());
  }
}

Status TrustedPacks::mount(const std::string& path, const PackTrust& trust) {
  KILN_ASSIGN_OR_RETURN(Pack pack, Pack::open(path));
  KILN_ASSIGN_OR_RETURN(const bool may_have_captures, trust.allows_captures(pack));
  m_packs.push_back({std::move(pack), may_have_captures});
  return {};
}

kiln_miss TrustedPacks::read_key(const Digest& key, kiln_artifact_kind kind, Bytes& bytes) const {
  kiln_miss miss = KILN_MISS_ABSENT;
  for (const Mounted& mounted : m_packs) {
    const PackedHead* head = mounted.pack.head(key);
    if (head == nullptr) continue;
    miss = read(mounted, *mounted.pack.artifact(digest_in(head->artifact)), kind, bytes);
    if (miss != KILN_HIT) continue;
    bytes.generation = head->generation;
    return miss;
  }
  return miss;
}

kiln_miss TrustedPacks::read_digest(const Digest& digest, kiln_artifact_kind kind, Bytes& bytes) const {
  kiln_miss miss = KILN_MISS_ABSENT;
  for (const Mounted& mounted : m_packs) {
    const PackedArtifact* artifact = mounted.pack.artifact(digest);
    if (artifact == nullptr) continue;
    miss = read(mounted, *artifact, kind, bytes);
    if (miss == KILN_HIT) return miss;
  }
  return miss;
}

kiln_miss TrustedPacks::read(const Mounted& mounted, const PackedArtifact& artifact, kiln_artifact_kind kind,
                             Bytes& bytes) {
  if (artifact.kind != kind) return KILN_MISS_ABSENT;
  if (kind == KILN_ARTIFACT_CAPTURE && !mounted.may_have_captures) return KILN_MISS_OWNER;
  auto packed = mounted.pack.read(artifact);
  if (!packed.ok()) return packed.status().code() == StatusCode::data_loss ? KILN_MISS_CORRUPT : KILN_MISS_EVICTED;
  bytes = {std::move(*packed), digest_in(artifact.digest), 0};
  return KILN_HIT;
}

std::vector<SourceEntry> TrustedPacks::find(std::span<const Digest> keys, ArtifactKind kind, Patience&) {
  std::vector<SourceEntry> found;
  for (const Digest& key : keys) {
    Bytes bytes;
    if (read_key(key, static_cast<kiln_artifact_kind>(kind), bytes) != KILN_HIT) continue;
    if (auto artifact = decode_artifact(bytes.artifact, bytes.digest); artifact.ok()) {
      found.push_back({key, bytes.generation, bytes.digest, std::move(*artifact)});
    }
  }
  return found;
}

}  // namespace kiln
