#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/expected.h"
#include "cache/format/artifact_bytes.h"
#include "cache/pack/layout.h"
#include "cache/pack/public_key.h"
#include "cache/pack/sha256.h"

namespace kiln {

/// What a key is, and is of, beside what it leads to: for installing and for people, never for running.
struct KeyDescription {
  std::string canonical_key;     // the bytes that the key is the digest of
  std::string provenance;        // JSON
  std::vector<uint8_t> content;  // what the key is of (protocol::Verb::content); may be empty

  bool operator==(const KeyDescription&) const = default;
};

/// A pack's file, or its bytes: read, never mapped and never written, and distrusted like anything else on a disk.
///
/// Opening checks header, manifest and signature; each artifact is checked when it is read, against the SHA-256 that was
/// signed. So whatever becomes of the file, what this gives is what the signer put there, or an error.
/// Whether the signer is to be trusted is for others to say. Threading: any function from any thread at once.
class Pack {
 public:
  /// Errors: not_found, unavailable; data_loss for what is no whole pack or has another signature than it should;
  /// resource_exhausted for a manifest beyond limits::k_pack_manifest_bytes.
  static Expected<Pack> open(const std::string& path);
  /// The same of a pack that came another way than as a file. `name`: for people, as path().
  static Expected<Pack> in_memory(std::vector<uint8_t> bytes, std::string name);

  const std::string& path() const { return m_path; }
  uint64_t size() const;
  /// Whether it was this user's file or root's, and nobody else's to write to, when it was opened.
  bool is_trusted_file() const { return m_is_trusted_file; }
  /// Nothing: nobody signed.
  const std::optional<PublicKey>& signer() const { return m_signer; }
  std::span<const PackedArtifact> artifacts() const { return m_artifacts; }
  std::span<const PackedHead> heads() const { return m_heads; }

  /// Null when there is none.
  const PackedHead* head(const Digest& key) const;
  const PackedArtifact* artifact(const Digest& digest) const;

  /// The artifact in its own format: its header, its digest and its SHA-256 are right. Errors: unavailable, data_loss.
  Expected<std::vector<uint8_t>> read(const PackedArtifact& artifact) const;
  /// Errors: as of read.
  Expected<KeyDescription> describe(const PackedHead& head) const;
  /// Reads everything. The first thing that is wrong.
  Status check_all() const;

 private:
  Status read_manifest();
  Expected<std::vector<uint8_t>> read_piece(uint64_t offset, uint64_t length, const uint8_t sha256[32]) const;
  Status check_gaps() const;

  std::string m_path;
  bool m_is_trusted_file = false;
  std::shared_ptr<const std::vector<uint8_t>> m_bytes;  // null: they are in the file
  PackHeader m_header{};
  std::optional<PublicKey> m_signer;
  std::vector<PackedArtifact> m_artifacts;
  std::vector<PackedHead> m_heads;
};

/// What a signer signs: the header, without its signature, and the manifest.
Sha256 pack_statement(PackHeader header, std::span<const PackedArtifact> artifacts, std::span<const PackedHead> heads);

inline Digest digest_in(const uint8_t (&bytes)[32]) {
  Digest digest;
  std::memcpy(digest.bytes.data(), bytes, sizeof bytes);
  return digest;
}

}  // namespace kiln
