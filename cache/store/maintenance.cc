#include <fcntl.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/fd.h"
#include "cache/format/touch.h"
#include "cache/store/store_impl.h"

/// What keeps the store in bounds and honest: pins, eviction, erasing, verification.
///
/// Eviction drops files, oldest first: files are never rewritten, and dropping one is one unlink. What is pinned or was in
/// use lately (the touch map says) gets a second chance: it is written again, to the newest file, before its file goes.
namespace kiln {

Status CacheStore::Impl::set_pinned(const Digest& digest, bool pinned) {
  const std::scoped_lock guard(m_mutex);
  if (m_catalog.artifact(digest) == nullptr) {
    return error(StatusCode::not_found, "artifact {} is not kept", digest.to_short());
  }
  rocksdb::WriteBatch batch;
  const rocksdb::Status written = pinned ? batch.Put(m_rocks->meta(), records::pin_key(digest), "")
                                         : batch.Delete(m_rocks->meta(), records::pin_key(digest));
  KILN_RETURN_IF_ERROR(from_rocksdb(written, "pinning"));
  KILN_RETURN_IF_ERROR(m_rocks->write(batch));
  m_catalog.set_pinned(digest, pinned);
  return {};
}

/// Takes artifacts and their heads off the record, then off the catalog. Their bytes stay, without a record
/// and so not found, until their file is evicted: a file of tombstones would only cost another file. A key
/// whose earlier generation led to another artifact that is kept goes back to that.
Status CacheStore::Impl::forget(const std::vector<Digest>& digests) {
  rocksdb::WriteBatch batch;
  std::vector<Digest> keys;
  for (const Digest& digest : digests) {
    const Catalog::ArtifactState* artifact = m_catalog.artifact(digest);
    if (artifact == nullptr) continue;
    batch.Delete(m_rocks->meta(), records::artifact_key(digest)).PermitUncheckedError();
    batch.Delete(m_rocks->meta(), records::pin_key(digest)).PermitUncheckedError();
    for (const Digest& key : artifact->keys) {
      batch.Delete(m_rocks->meta(), records::head_key(key, m_catalog.head(key)->generation)).PermitUncheckedError();
      batch.Delete(m_rocks->meta(), records::content_key(key)).PermitUncheckedError();
      keys.push_back(key);
    }
  }
  KILN_RETURN_IF_ERROR(m_rocks->write(batch));
  for (const Digest& digest : digests) m_catalog.remove_artifact(digest);
  return fall_back_to_older_heads(keys);
}

Status CacheStore::Impl::fall_back_to_older_heads(const std::vector<Digest>& keys) {
  rocksdb::WriteBatch dangling;
  for (const Digest& key : keys) {
    for (const Head& head : read_history(key)) {
      if (m_catalog.artifact(head.artifact) != nullptr) {
        m_catalog.set_head(key, {head.artifact, head.generation});
        break;
      }
      dangling.Delete(m_rocks->meta(), records::head_key(key, head.generation)).PermitUncheckedError();
    }
  }
  return m_rocks->write(dangling);
}

/// What outlives an eviction to `capacity_bytes`: what is pinned, and of the rest what was in use last, as much as fits.
std::unordered_set<Digest> CacheStore::Impl::survivors(uint64_t capacity_bytes) {
  const std::scoped_lock guard(m_mutex);
  struct Use {
    Digest digest;
    uint64_t last_ms, bytes;
  };
  std::vector<uint8_t> touched(KILN_TOUCH_BYTES);
  const std::string path = m_options.directory + "/" KILN_PUBLISHED_FOLDER "/" KILN_TOUCH_FILE;
  if (const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)); file) {
    files::read_at(file.get(), touched, 0);
  }
  // A file is a little larger than what is in it.
  uint64_t room = capacity_bytes - capacity_bytes / 16;
  std::unordered_set<Digest> kept;
  std::vector<Use> uses;
  for (const auto& [digest, artifact] : m_catalog.artifacts()) {
    if (!artifact.location) continue;
    const uint64_t bytes = artifact.location->length;
    if (artifact.pinned) {
      kept.insert(digest);
      room -= std::min(room, bytes);
      continue;
    }
    uint32_t minutes = 0;
    std::memcpy(&minutes, touched.data() + kiln_touch_offset(digest.bytes.data()), sizeof minutes);
    uses.push_back({digest, std::max(artifact.created_ms, uint64_t{minutes} * 60'000), bytes});
  }
  std::ranges::sort(uses, std::ranges::greater(), &Use::last_ms);
  for (const Use& use : uses) {
    if (use.bytes > room) break;
    room -= use.bytes;
    kept.insert(use.digest);
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

Status CacheStore::Impl::evict(uint64_t capacity_bytes) {
  const std::scoped_lock evicting(m_evict_mutex);
  KILN_RETURN_IF_ERROR(flush());
  KILN_ASSIGN_OR_RETURN(uint64_t left, evict_but(survivors(capacity_bytes), capacity_bytes));
  // Files are larger than what is in them: where the survivors do not fit either, only what is pinned remains.
  if (left > capacity_bytes) {
    KILN_ASSIGN_OR_RETURN(left, evict_but(survivors(0), capacity_bytes));
  }
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

Status CacheStore::Impl::erase(const Digest& digest) {
  const std::scoped_lock guard(m_mutex);
  KILN_RETURN_IF_ERROR(forget({digest}));
  return sync();
}

Status CacheStore::Impl::keep_newest(const Digest& key, size_t count) {
  const std::scoped_lock guard(m_mutex);
  const std::vector<Head> history = read_history(key);
  if (history.size() <= count) return {};
  rocksdb::WriteBatch batch;
  std::vector<Digest> unled;
  for (const Head& head : std::span(history).subspan(count)) {
    batch.Delete(m_rocks->meta(), records::head_key(key, head.generation)).PermitUncheckedError();
    const Catalog::ArtifactState* artifact = m_catalog.artifact(head.artifact);
    const auto is_newer = [&](const Head& other) { return other.artifact == head.artifact; };
    if (artifact != nullptr && artifact->keys.empty() && !artifact->pinned &&
        std::ranges::none_of(std::span(history).first(count), is_newer)) {
      unled.push_back(head.artifact);
    }
  }
  KILN_RETURN_IF_ERROR(m_rocks->write(batch));
  KILN_RETURN_IF_ERROR(forget(unled));
  return sync();
}

Status CacheStore::Impl::clear() {
  const std::scoped_lock evicting(m_evict_mutex, m_family_mutex);
  const std::scoped_lock guard(m_mutex);
  // The records first: should the process die in between, the artifacts have no record and are not found.
  std::vector<Digest> all;
  for (const auto& [digest, artifact] : m_catalog.artifacts()) all.push_back(digest);
  rocksdb::WriteBatch batch;
  const std::string first("\0", 1), last("\xff", 1);
  KILN_RETURN_IF_ERROR(from_rocksdb(batch.DeleteRange(m_rocks->meta(), first, last), "clearing"));
  KILN_RETURN_IF_ERROR(m_rocks->write(batch));
  for (const Digest& digest : all) m_catalog.remove_artifact(digest);
  KILN_RETURN_IF_ERROR(m_rocks->recreate_artifacts());
  return sync();
}

std::optional<std::string> CacheStore::Impl::damage_of(const Digest& digest, const Catalog::ArtifactState& artifact) {
  const auto value = m_rocks->get(m_rocks->artifacts(), slice_of(digest));
  if (!value.ok()) return value.status().message();
  if (!*value) return "its bytes are gone";
  const std::span stored(reinterpret_cast<const uint8_t*>((*value)->data()), (*value)->size());
  if (const auto decoded = decode_artifact(stored, digest); !decoded.ok()) return decoded.status().message();
  if (!artifact.location) return std::nullopt;

  std::vector<uint8_t> published(artifact.location->length);
  const std::string path = m_publisher->link_path(artifact.location->file);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return path + " cannot be opened";
  const ssize_t size = pread(fd, published.data(), published.size(), static_cast<off_t>(artifact.location->offset));
  ::close(fd);
  if (size != static_cast<ssize_t>(stored.size()) || !std::ranges::equal(published, stored)) {
    return path + " holds other bytes";
  }
  return std::nullopt;
}

Expected<std::vector<Damage>> CacheStore::Impl::verify() {
  std::vector<Digest> all;
  {
    const std::scoped_lock guard(m_mutex);
    for (const auto& [digest, artifact] : m_catalog.artifacts()) all.push_back(digest);
  }
  std::vector<Damage> damaged;
  for (const Digest& digest : all) {
    // The lock is held for one artifact at a time, so that publishing goes on.
    const std::scoped_lock guard(m_mutex);
    const Catalog::ArtifactState* artifact = m_catalog.artifact(digest);
    if (artifact == nullptr) continue;
    if (auto reason = damage_of(digest, *artifact)) damaged.push_back({digest, std::move(*reason)});
  }
  return damaged;
}

}  // namespace kiln
