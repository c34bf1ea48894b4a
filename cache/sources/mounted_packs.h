#pragma once

#include <deque>
#include <string>
#include <vector>

#include "cache/pack/pack_trust.h"
#include "cache/sources/pack_source.h"

namespace kiln {

/// Which packs are used, as the configuration says.
struct PackFolders {
  std::string path;            // folders, with colons between, with packs in them (*.kpack)
  std::string trust;           // the folder with the keys of who may sign them (*.pub)
  std::string trust_captures;  // and of who may sign captures, too
};

/// Packs used in place. Their folders are looked through once; what is in them is read where it lies, artifact by artifact,
/// as it is asked for.
class MountedPacks final : public Source {
 public:
  /// What is not to be used is left out, and `refusals` says why. `copies`: where what was read is kept.
  MountedPacks(const PackFolders& folders, CacheDirectory& copies);

  kiln_miss find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) override;
  kiln_miss find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) override;

  size_t count() const { return m_packs.size(); }
  /// One sentence each.
  const std::vector<std::string>& refusals() const { return m_refusals; }

 private:
  void mount_folder(const std::string& folder, const PackTrust& trust);
  Status mount(const std::string& path, const PackTrust& trust);
  template <typename Find>
  kiln_miss first_hit(Find find);

  std::deque<PackSource> m_packs;
  std::vector<std::string> m_refusals;
  CacheDirectory& m_copies;
};

}  // namespace kiln
