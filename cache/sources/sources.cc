#include "cache/sources/sources.h"

#include <span>

namespace kiln {
namespace {

template <typename Find>
kiln_miss first_hit(std::span<Source* const> rows, Find find) {
  const kiln_miss first = find(*rows.front());
  if (first == KILN_HIT) return first;
  for (Source* row : rows.subspan(1)) {
    if (find(*row) == KILN_HIT) return KILN_HIT;
  }
  return first;
}

}  // namespace

Sources::Sources(const std::string& cache_directory, const PackFolders& folders, const std::string& shared)
    : m_directory(cache_directory), m_packs(folders, m_directory), m_shared(shared) {}

kiln_miss Sources::find_key(const Digest& key, kiln_artifact_kind kind, kiln_view& view) {
  return first_hit(m_rows, [&](Source& row) { return row.find_key(key, kind, view); });
}

kiln_miss Sources::find_digest(const Digest& artifact, kiln_artifact_kind kind, kiln_view& view) {
  return first_hit(m_rows, [&](Source& row) { return row.find_digest(artifact, kind, view); });
}

kiln_miss Sources::map_code(const kiln_view& view, const uint8_t*& code) {
  const kiln_miss miss = m_directory.map_code(view, code);  // packs' artifacts lie there, too
  return miss == KILN_MISS_ABSENT ? m_shared.map_code(view, code) : miss;
}

}  // namespace kiln
