#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "cache/sources/cache_directory.h"
#include "service/protocol/message.h"

namespace kiln {

/// Programs that the cache directory has by now, as clients find them. Whoever asks again in spite of the answer, since it
/// cannot read what is there, is not to be answered from here. Threading: one thread.
class PublishedPrograms {
 public:
  explicit PublishedPrograms(std::string cache_directory) : m_path(std::move(cache_directory)) {}

  /// The heads of these programs' keys; nothing unless each leads to a program that is there with all that it needs, and is
  /// tuned where `is_tuned` asks for that.
  std::optional<std::vector<protocol::PublishedHead>> find(std::span<const Digest> keys, bool is_tuned);

 private:
  bool is_whole(const kiln_view& program);
  kiln_miss look(kiln_miss miss, const kiln_view& view);

  const std::string m_path;
  std::optional<CacheDirectory> m_directory;  // it keeps what it has read
  size_t m_bytes = 0;                         // at most
};

}  // namespace kiln
