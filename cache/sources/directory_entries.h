#pragma once

#include <string>
#include <utility>

#include "cache/sources/entry_source.h"

namespace kiln {

/// A cache directory's entries, read through its mapped index.
class DirectoryEntries final : public EntrySource {
 public:
  explicit DirectoryEntries(std::string path) : m_path(std::move(path)) {}

  std::vector<SourceEntry> find(std::span<const Digest> keys, ArtifactKind kind, Patience& patience) override;

 private:
  const std::string m_path;
};

}  // namespace kiln
