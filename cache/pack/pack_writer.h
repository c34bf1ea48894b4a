#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "cache/pack/pack.h"
#include "cache/pack/signing_key.h"

namespace kiln {

/// Writes a pack: the same entries and signer give the same bytes, whenever and wherever. It lies aside until finish puts
/// it in place.
///
/// First the artifacts, ascending by digest, then the heads, ascending by key.
class PackWriter {
 public:
  /// Errors: unavailable, resource_exhausted when that is more than a manifest may hold.
  static Expected<PackWriter> create(const std::string& path, size_t artifacts, size_t heads);
  /// The same for a pack that is to be no file: finish_in_memory ends it.
  static Expected<PackWriter> create_in_memory(size_t artifacts, size_t heads);
  PackWriter(PackWriter&& other) noexcept;
  PackWriter& operator=(PackWriter&&) = delete;
  ~PackWriter();  // removes what was not finished

  /// Errors: invalid_argument out of order, unavailable, resource_exhausted.
  Status add(const Artifact& artifact);
  Status add(const Digest& key, const Digest& artifact, uint32_t generation, const KeyDescription& description);
  /// `key`: who signs; null: nobody. Errors: invalid_argument when less was added than was said.
  Status finish(const SigningKey* key);
  Expected<std::vector<uint8_t>> finish_in_memory(const SigningKey* key);

 private:
  PackWriter(std::string path, UniqueFd file, PackHeader header);
  std::string aside() const { return m_path + ".part"; }
  Status write(std::span<const uint8_t> bytes, uint64_t offset);
  /// Signs, and writes header and manifest: gives the pack's size.
  Expected<uint64_t> write_manifest(const SigningKey* key);
  /// Where the piece came to lie in the body.
  Expected<uint64_t> append(std::span<const uint8_t> bytes);

  std::string m_path;
  UniqueFd m_file;  // none: in memory
  std::vector<uint8_t> m_bytes;
  PackHeader m_header;
  std::vector<PackedArtifact> m_artifacts;
  std::vector<PackedHead> m_heads;
};

}  // namespace kiln
