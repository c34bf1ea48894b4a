#include "cache/sources/mounted_packs.h"

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

MountedPacks::MountedPacks(const PackFolders& folders, CacheDirectory& copies) : m_copies(copies) {
  if (folders.path.empty()) return;
  const PackTrust trust{read_keys(folders.trust, m_refusals), read_keys(folders.trust_captures, m_refusals)};
  for (const std::string& folder : split(folders.path, ':')) mount_folder(folder, trust);
}

void MountedPacks::mount_folder(const std::string& folder, const PackTrust& trust) {
  for (const std::string& path : packs_in(folder, m_refusals)) {
    if (m_packs.size() == limits::k_mounted_packs) {
      m_refusals.push_back(fmt::format("{}: more than {} packs", path, limits::k_mounted_packs));
      return;
    }
    if (const Status status = mount(path, trust); !status.ok()) m_refusals.push_back(status.message());
  }
}

Status MountedPacks::mount(const std::string& path, const PackTrust& trust) {
  KILN_ASSIGN_OR_RETURN(Pack pack, Pack::open(path));
  KILN_ASSIGN_OR_RETURN(const bool may_have_captures, trust.allows_captures(pack));
  m_packs.emplace_back(std::move(pack), may_have_captures, m_copies);
  return {};
}

kiln_miss MountedPacks::find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) {
  return first_hit([&](PackSource& pack) { return pack.find_key(key, kind, view); });
}

kiln_miss MountedPacks::find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) {
  return first_hit([&](PackSource& pack) { return pack.find_digest(artifact, kind, view); });
}

/// The miss is that of the last pack that has the entry.
template <typename Find>
kiln_miss MountedPacks::first_hit(Find find) {
  kiln_miss miss = KILN_MISS_ABSENT;
  for (PackSource& pack : m_packs) {
    const kiln_miss found = find(pack);
    if (found == KILN_HIT) return found;
    if (found != KILN_MISS_ABSENT) miss = found;
  }
  return miss;
}

}  // namespace kiln
