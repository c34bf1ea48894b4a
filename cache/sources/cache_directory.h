#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/expected.h"
#include "cache/format/artifact_bytes.h"
#include "cache/sources/source.h"

namespace kiln {

/// An artifact's own bytes, and a key that leads to one.
using CarriedArtifact = std::pair<Digest, Artifact>;
using CarriedHead = std::pair<Digest, Digest>;

/// The mapped cache directory (cache/reader/reader.h), and what this process was offered besides, which lies beside what
/// was found there.
class CacheDirectory final : public Source {
 public:
  explicit CacheDirectory(const std::string& path);
  ~CacheDirectory() override;

  kiln_miss find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) override;
  kiln_miss find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) override;

  /// Takes in what came another way: found by this process from now on, as if it were in the directory.
  /// Errors: data_loss for bytes that are not what they are called, resource_exhausted.
  Status offer(const std::vector<CarriedArtifact>& artifacts, const std::vector<CarriedHead>& heads);
  /// The same for one artifact in its own format, which was checked.
  kiln_miss offer(std::span<const uint8_t> artifact);

  /// What was offered is found here, too.
  kiln_miss map_code(const kiln_view& view, const uint8_t*& code) override;

 private:
  kiln_reader* m_reader;
  std::unordered_map<Digest, Digest> m_carried_heads;  // process_mutex() guards it
};

}  // namespace kiln
