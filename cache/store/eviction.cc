#include <fcntl.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <unordered_map>

#include "base/fd.h"
#include "cache/format/touch.h"
#include "cache/store/store_impl.h"

/// What keeps the store in bounds.
///
/// Eviction drops files, oldest first: files are never rewritten, and dropping one is one unlink. What is pinned or was in
/// use lately (the touch map says) gets a second chance: it is written again, to the newest file, before its file goes. A
/// program without one of its kernels is of no use: what is chosen to stay, stays with all that it needs.
namespace kiln {
namespace {

/// When artifacts were last in use, as clients noted it.
class TouchMap {
 public:
  explicit TouchMap(const std::string& path) : m_cells(KILN_TOUCH_BYTES) {
    if (const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)); file) {
      files::read_at(file.get(), m_cells, 0);
    }
  }
  uint64_t last_ms(const Digest& digest) const {
    uint32_t minutes = 0;
    std::memcpy(&minutes, m_cells.data() + kiln_touch_offset(digest.bytes.data()), sizeof minutes);
    return uint64_t{minutes} * 60'000;
  }

 private:
  std::vector<uint8_t> m_cells;
};

using Names = std::unordered_map<Digest, std::vector<Digest>>;

/// Puts `root` and all that it needs into `members`.
void add_closure(const Digest& root, const Names& names, std::unordered_set<Digest>& members) {
  if (!members.insert(root).second) return;
  const auto needed = names.find(root);
  if (needed == names.end()) return;
  for (const Digest& each : needed->second) add_closure(each, names, members);
}

}  // namespace

/// What programs and plans need by their own words. One that cannot be read needs nothing.
std::unordered_map<Digest, std::vector<Digest>> CacheStore::Impl::needs_of_all() {
  Names names;
  if (!m_options.needs) return names;
  for (const auto& [digest, artifact] : m_catalog.artifacts()) {
    if (artifact.kind != ArtifactKind::program && artifact.kind != ArtifactKind::plan) continue;
    const auto value = m_rocks->get(m_rocks->artifacts(), slice_of(digest));
    if (!value.ok() || !*value) continue;
    const std::span bytes(reinterpret_cast<const uint8_t*>((*value)->data()), (*value)->size());
    const auto decoded = decode_artifact(bytes, digest);
    if (!decoded.ok()) continue;
    std::vector<Digest> needed = m_options.needs(decoded->kind, decoded->payload);
    if (!needed.empty()) names.emplace(digest, std::move(needed));
  }
  return names;
}

/// What nothing else needs, each with all that it needs. One that lacks a part is none.
std::vector<CacheStore::Impl::Unit> CacheStore::Impl::units() {
  const Names names = needs_of_all();
  std::unordered_set<Digest> needed;
  for (const auto& [digest, list] : names) needed.insert(list.begin(), list.end());
  std::vector<Unit> units;
  std::unordered_map<Digest, size_t> owners;
  for (const auto& [digest, artifact] : m_catalog.artifacts()) {
    if (needed.contains(digest)) continue;
    Unit unit;
    add_closure(digest, names, unit.members);
    const auto is_kept = [&](const Digest& each) { return m_catalog.artifact(each) != nullptr; };
    if (!std::ranges::all_of(unit.members, is_kept)) continue;
    for (const Digest& each : unit.members) ++owners[each];
    units.push_back(std::move(unit));
  }
  // What others need too was perhaps in use for them.
  const TouchMap touched(m_options.directory + "/" KILN_PUBLISHED_FOLDER "/" KILN_TOUCH_FILE);
  for (Unit& unit : units) {
    for (const Digest& each : unit.members) {
      if (owners.at(each) > 1) continue;
      unit.last_ms = std::max({unit.last_ms, m_catalog.artifact(each)->created_ms, touched.last_ms(each)});
    }
  }
  return units;
}

/// What outlives an eviction to `capacity_bytes`: what is pinned, and of the rest what was in use last, as much as fits.
/// What several units need counts once.
std::unordered_set<Digest> CacheStore::Impl::survivors(uint64_t capacity_bytes) {
  const std::scoped_lock guard(m_mutex);
  // A file is a little larger than what is in it.
  uint64_t room = capacity_bytes - capacity_bytes / 16;
  std::unordered_set<Digest> kept;
  const auto bytes_of = [&](const Digest& digest) {
    const auto& location = m_catalog.artifact(digest)->location;
    return kept.contains(digest) || !location ? 0 : location->length;
  };
  for (const auto& [digest, artifact] : m_catalog.artifacts()) {
    if (!artifact.pinned) continue;
    room -= std::min(room, bytes_of(digest));
    kept.insert(digest);
  }
  std::vector<Unit> ordered = units();
  std::ranges::sort(ordered, std::ranges::greater(), &Unit::last_ms);
  for (const Unit& unit : ordered) {
    uint64_t bytes = 0;
    for (const Digest& each : unit.members) bytes += bytes_of(each);
    if (bytes > room) continue;
    room -= bytes;
    kept.insert(unit.members.begin(), unit.members.end());
  }
  return kept;
}

Status CacheStore::Impl::rewrite(const LiveFile& file, const std::unordered_set<Digest>& kept) {
  rocksdb::WriteBatch batch;
  for (const Digest& digest : kept) {
    const Catalog::ArtifactState* artifact = m_catalog.artifact(digest);
    if (artifact == nullptr || !artifact->location || artifact->location->file != file.number) continue;
    KILN_ASSIGN_OR_RETURN(const auto value, m_rocks->get(m_rocks->artifacts(), slice_of(digest)));
    if (value) batch.Put(m_rocks->artifacts(), slice_of(digest), *value).PermitUncheckedError();
  }
  return m_rocks->write(batch);
}

/// A program whose kernel went with an older file is of no use, wherever it lies itself.
Status CacheStore::Impl::forget_incomplete() {
  const std::scoped_lock guard(m_mutex);
  const Names names = needs_of_all();
  std::vector<Digest> incomplete;
  for (const auto& [digest, needed] : names) {
    std::unordered_set<Digest> members;
    add_closure(digest, names, members);
    const auto is_gone = [&](const Digest& each) { return m_catalog.artifact(each) == nullptr; };
    if (!m_catalog.artifact(digest)->pinned && std::ranges::any_of(members, is_gone)) incomplete.push_back(digest);
  }
  if (incomplete.empty()) return {};
  m_stats.evicted += incomplete.size();
  KILN_RETURN_IF_ERROR(forget(incomplete));
  return sync();
}

Status CacheStore::Impl::evict(uint64_t capacity_bytes) {
  const std::scoped_lock evicting(m_evict_mutex);
  KILN_RETURN_IF_ERROR(flush());
  KILN_ASSIGN_OR_RETURN(uint64_t left, evict_but(survivors(capacity_bytes), capacity_bytes));
  // Files are larger than what is in them: where the survivors do not fit either, only what is pinned remains.
  if (left > capacity_bytes) {
    KILN_ASSIGN_OR_RETURN(left, evict_but(survivors(0), capacity_bytes));
  }
  KILN_RETURN_IF_ERROR(forget_incomplete());
  if (left <= capacity_bytes) return {};
  return error(StatusCode::resource_exhausted, "what is pinned takes {} bytes, the capacity is {}", left,
               capacity_bytes);
}

/// Drops files, the oldest first, until the capacity is kept or every file that there is now has gone once; what is in
/// `kept` is written again first. Gives what all files take then.
Expected<uint64_t> CacheStore::Impl::evict_but(const std::unordered_set<Digest>& kept, uint64_t capacity_bytes) {
  for (size_t drops = m_rocks->files().size();; --drops) {
    const std::vector<LiveFile> files = m_rocks->files();
    uint64_t total = 0;
    for (const LiveFile& file : files) total += file.size;
    if (total <= capacity_bytes || drops == 0 || files.empty()) return total;
    {
      const std::scoped_lock guard(m_mutex);
      KILN_RETURN_IF_ERROR(rewrite(files.front(), kept));
    }
    KILN_RETURN_IF_ERROR(flush());  // the survivors are in a newer file, and found there, before the old one goes
    KILN_RETURN_IF_ERROR(m_rocks->drop_oldest(files.front()));
    const std::scoped_lock guard(m_mutex);
    KILN_RETURN_IF_ERROR(sync());
  }
}

}  // namespace kiln
