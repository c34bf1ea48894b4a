#pragma once

#include <string>
#include <vector>

#include "cache/pack/pack_trust.h"
#include "cache/reader/reader.h"
#include "cache/sources/entry_source.h"

namespace kiln {

/// Which packs are used, as the configuration says.
struct PackFolders {
  std::string path;            // folders, with colons between, with packs in them (*.kpack)
  std::string trust;           // the folder with the keys of who may sign them (*.pub)
  std::string trust_captures;  // and of who may sign captures, too
};

/// Packs whose signers are trusted, those of the configured folders or one. Folders are looked through once; what is in packs
/// is read where it lies, artifact by artifact, as it is asked for.
class TrustedPacks final : public EntrySource {
 public:
  /// What is not to be used is left out, and `refusals` says why.
  explicit TrustedPacks(const PackFolders& folders);
  /// One pack, which its user has found to be trusted, though not for captures.
  explicit TrustedPacks(Pack pack) { m_packs.push_back({std::move(pack), false}); }

  std::vector<SourceEntry> find(std::span<const Digest> keys, ArtifactKind kind, Patience& patience) override;

  /// An artifact as a pack has it: in its own format, checked.
  struct Bytes {
    std::vector<uint8_t> artifact;
    Digest digest;
    uint32_t generation = 0;  // of the head that led there; 0 for a lookup by digest
  };
  /// `bytes` is written on a hit only.
  kiln_miss read_key(const Digest& key, kiln_artifact_kind kind, Bytes& bytes) const;
  kiln_miss read_digest(const Digest& digest, kiln_artifact_kind kind, Bytes& bytes) const;

  size_t count() const { return m_packs.size(); }
  /// One sentence each.
  const std::vector<std::string>& refusals() const { return m_refusals; }

 private:
  struct Mounted {
    Pack pack;
    bool may_have_captures;
  };
  void mount_folder(const std::string& folder, const PackTrust& trust);
  Status mount(const std::string& path, const PackTrust& trust);
  static kiln_miss read(const Mounted& mounted, const PackedArtifact& artifact, kiln_artifact_kind kind, Bytes& bytes);

  std::vector<Mounted> m_packs;
  std::vector<std::string> m_refusals;
};

}  // namespace kiln
