#include <fcntl.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "cache/store/store_impl.h"

/// What keeps the store honest: pins, erasing, verification.
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
