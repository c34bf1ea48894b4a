#include "cache/store/store.h"

#include <fcntl.h>
#include <rocksdb/write_batch.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "base/fault.h"
#include "base/fd.h"
#include "base/limits.h"
#include "cache/store/store_impl.h"

namespace kiln {
namespace {

uint64_t now_ms() {
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count());
}

rocksdb::Slice slice(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string_view view(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

/// Says that somebody is opening a database. Whoever dies of that leaves it behind.
class OpeningMark {
 public:
  explicit OpeningMark(std::string path) : m_path(std::move(path)), m_was_left(access(m_path.c_str(), F_OK) == 0) {
    const UniqueFd file(open(m_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  }
  ~OpeningMark() { unlink(m_path.c_str()); }
  OpeningMark(const OpeningMark&) = delete;
  bool was_left() const { return m_was_left; }

 private:
  const std::string m_path;
  const bool m_was_left;
};

/// Whether a process that opens the database and reads all of it dies: an assertion of RocksDB's ends it where a damaged
/// file no longer says how its blocks can be checked. Tried in a process of its own, which ends with this one: it has the
/// locks of the cache.
bool kills_whoever_opens_it(const StoreOptions& options, const std::string& directory) {
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self) _exit(0);
    if (auto rocks = Rocks::open(options, directory, [] {}); rocks.ok()) (*rocks)->read_all();
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status);
}

/// Opens the database; one that is damaged is set aside, since a cache must not keep its user from working.
Expected<std::unique_ptr<Rocks>> open_database(const StoreOptions& options, const std::function<void()>& files_changed,
                                               const OpeningMark& mark, std::string& report) {
  const std::string directory = options.directory + "/db";
  const bool is_deadly = mark.was_left() && kills_whoever_opens_it(options, directory);
  auto rocks = is_deadly ? error(StatusCode::data_loss, "a process that opens it dies")
                         : Rocks::open(options, directory, files_changed);
  if (rocks.ok() || rocks.status().code() != StatusCode::data_loss) return rocks;
  const std::string aside = directory + ".damaged";
  std::error_code failed;
  std::filesystem::remove_all(aside, failed);
  std::filesystem::rename(directory, aside, failed);
  if (failed) return rocks;
  report = fmt::format("the database was damaged ({}); it lies in {} and an empty one was begun",
                       rocks.status().message(), aside);
  return Rocks::open(options, directory, files_changed);
}

}  // namespace

/* ---- opening */

Expected<std::unique_ptr<CacheStore::Impl>> CacheStore::Impl::open(const StoreOptions& options) {
  KILN_RETURN_IF_ERROR(files::ensure_private_directory(options.directory));
  KILN_ASSIGN_OR_RETURN(files::Lock lock, files::Lock::acquire(options.directory + "/LOCK"));
  std::unique_ptr<Impl> impl(new Impl(options, std::move(lock)));
  const std::scoped_lock guard(impl->m_mutex);
  Impl* self = impl.get();
  KILN_ASSIGN_OR_RETURN(impl->m_publisher, Publisher::open(options, options.directory));
  const OpeningMark mark(options.directory + "/db.opening");
  KILN_ASSIGN_OR_RETURN(impl->m_rocks, open_database(options, [self] { self->files_changed(); }, mark, impl->m_report));
  KILN_RETURN_IF_ERROR(impl->load_catalog());
  KILN_RETURN_IF_ERROR(impl->sync());
  KILN_RETURN_IF_ERROR(impl->forget_unlocated());
  impl->m_open = true;
  return impl;
}

CacheStore::Impl::~Impl() {
  if (m_open) (void)flush();  // what is not flushed is in the log and comes back with the next open
  m_rocks = nullptr;
}

void CacheStore::Impl::load_records(char tag,
                                    const std::function<bool(std::string_view key, std::string_view value)>& load,
                                    rocksdb::WriteBatch& stale) {
  const std::unique_ptr<rocksdb::Iterator> it(m_rocks->db().NewIterator(rocksdb::ReadOptions(), m_rocks->meta()));
  for (it->Seek(rocksdb::Slice(&tag, 1)); it->Valid() && it->key()[0] == tag; it->Next()) {
    if (!load(view(it->key()), view(it->value()))) stale.Delete(m_rocks->meta(), it->key()).PermitUncheckedError();
  }
}

Status CacheStore::Impl::load_catalog() {
  rocksdb::WriteBatch stale;
  load_records(
      'a',
      [this](std::string_view key, std::string_view value) {
        const auto digest = records::digest_in(key);
        const auto artifact = records::decode_artifact(value);
        if (digest && artifact) m_catalog.add_artifact(*digest, *artifact);
        return digest && artifact;
      },
      stale);
  // Generations sort upwards, so the last one set is the highest.
  load_records(
      'h',
      [this](std::string_view key, std::string_view value) {
        const auto head = records::decode_head(key, value);
        if (!head || m_catalog.artifact(head->artifact) == nullptr) return false;
        m_catalog.set_head(head->key, {head->artifact, head->generation});
        return true;
      },
      stale);
  load_records(
      'p',
      [this](std::string_view key, std::string_view) {
        const auto digest = records::digest_in(key);
        if (!digest || m_catalog.artifact(*digest) == nullptr) return false;
        m_catalog.set_pinned(*digest, true);
        return true;
      },
      stale);
  return m_rocks->write(stale);
}

/// Recovery wrote what was in the log to files, so an artifact without a place has lost its bytes, or they
/// are damaged. It is forgotten, so that it can be published again.
Status CacheStore::Impl::forget_unlocated() {
  std::vector<Digest> lost;
  for (const auto& [digest, artifact] : m_catalog.artifacts()) {
    if (!artifact.location) lost.push_back(digest);
  }
  if (lost.empty()) return {};
  add_report(fmt::format("{} artifacts were lost or damaged and are forgotten", lost.size()));
  KILN_RETURN_IF_ERROR(forget(lost));
  return sync();
}

void CacheStore::Impl::add_report(const std::string& sentence) {
  if (!m_report.empty()) m_report += "; ";
  m_report += sentence;
}

/* ---- publishing */

Status CacheStore::Impl::check_head(const Head& head) {
  if (head.canonical_key.size() > limits::k_canonical_key_bytes ||
      head.provenance.size() > limits::k_provenance_bytes) {
    return error(StatusCode::resource_exhausted, "head {}: key of {} bytes, provenance of {}, at most {} and {}",
                 head.key.to_short(), head.canonical_key.size(), head.provenance.size(), limits::k_canonical_key_bytes,
                 limits::k_provenance_bytes);
  }
  for (const Head& kept : read_history(head.key)) {
    if (kept.canonical_key != head.canonical_key) {
      ++m_stats.conflicts;
      return error(StatusCode::already_exists, "head {}: two different keys have this digest", head.key.to_short());
    }
    const bool leads_somewhere = m_catalog.artifact(kept.artifact) != nullptr;
    if (leads_somewhere && kept.generation == head.generation && kept.artifact != head.artifact) {
      ++m_stats.conflicts;
      return error(StatusCode::already_exists, "head {} generation {} leads to artifact {} already, not to {}",
                   head.key.to_short(), head.generation, kept.artifact.to_short(), head.artifact.to_short());
    }
  }
  return {};
}

Status CacheStore::Impl::check_batch(const PublishBatch& batch, const std::vector<Digest>& digests) {
  if (batch.artifacts.size() > limits::k_batch_artifacts || batch.heads.size() > limits::k_batch_heads) {
    return error(StatusCode::resource_exhausted, "batch of {} artifacts and {} heads, at most {} and {}",
                 batch.artifacts.size(), batch.heads.size(), limits::k_batch_artifacts, limits::k_batch_heads);
  }
  const std::unordered_set<Digest> in_batch(digests.begin(), digests.end());
  std::unordered_map<Digest, const Head*> seen;
  for (const Head& head : batch.heads) {
    if (!in_batch.contains(head.artifact) && m_catalog.artifact(head.artifact) == nullptr) {
      return error(StatusCode::not_found, "head {}: artifact {} is neither in the batch nor kept", head.key.to_short(),
                   head.artifact.to_short());
    }
    KILN_RETURN_IF_ERROR(check_head(head));
    const auto [twin, fresh] = seen.emplace(head.key, &head);
    if (!fresh && (twin->second->canonical_key != head.canonical_key ||
                   (twin->second->generation == head.generation && twin->second->artifact != head.artifact))) {
      return invalid_argument("batch: head {} is given twice, differently", head.key.to_short());
    }
  }
  return {};
}

Status CacheStore::Impl::publish(const PublishBatch& batch) {
  std::vector<Digest> digests;
  for (const Artifact& artifact : batch.artifacts) digests.push_back(artifact_digest(artifact));

  const std::scoped_lock guard(m_mutex);
  KILN_RETURN_IF_ERROR(check_batch(batch, digests));
  rocksdb::WriteBatch writes;
  std::unordered_map<Digest, Catalog::ArtifactState> fresh;
  for (size_t i = 0; i < digests.size(); ++i) {
    const Artifact& artifact = batch.artifacts[i];
    const Catalog::ArtifactState* kept = m_catalog.artifact(digests[i]);
    // What is kept but damaged is written again: clients find an artifact in the newest file that has it.
    if (fresh.contains(digests[i]) || (kept != nullptr && !damage_of(digests[i], *kept))) {
      ++m_stats.duplicates;
      continue;
    }
    KILN_ASSIGN_OR_RETURN(const std::vector<uint8_t> value,
                          encode_artifact(artifact, digests[i], sizeof(kiln_artifact_header)));
    Catalog::ArtifactState state{
        .kind = artifact.kind, .payload_bytes = artifact.payload.size(), .created_ms = now_ms()};
    writes.Put(m_rocks->artifacts(), slice_of(digests[i]), slice(value)).PermitUncheckedError();
    writes.Put(m_rocks->meta(), records::artifact_key(digests[i]), records::encode_artifact(state))
        .PermitUncheckedError();
    fresh.emplace(digests[i], std::move(state));
  }
  for (Head head : batch.heads) {
    head.created_ms = now_ms();
    writes.Put(m_rocks->meta(), records::head_key(head.key, head.generation), records::encode_head(head))
        .PermitUncheckedError();
    if (head.content.empty() || head.content.size() > limits::k_kept_content_bytes) continue;
    writes.Put(m_rocks->meta(), records::content_key(head.key), slice(head.content)).PermitUncheckedError();
  }
  KILN_RETURN_IF_ERROR(m_rocks->write(writes));
  KILN_FAULT_POINT("cache.publish.written");

  // On record now; the catalog follows.
  m_stats.published += fresh.size();
  for (auto& [digest, state] : fresh) m_catalog.add_artifact(digest, std::move(state));
  for (const Head& head : batch.heads) {
    const Catalog::HeadState* before = m_catalog.head(head.key);
    if (before == nullptr || before->generation < head.generation) {
      m_catalog.set_head(head.key, {head.artifact, head.generation});
    }
  }
  return {};
}

Status CacheStore::Impl::flush() {
  const std::shared_lock family(m_family_mutex);
  KILN_RETURN_IF_ERROR(m_rocks->flush_artifacts());
  KILN_FAULT_POINT("cache.flush.written");
  const std::scoped_lock guard(m_mutex);
  return sync();
}

Status CacheStore::Impl::republish() {
  const std::scoped_lock guard(m_mutex);
  KILN_ASSIGN_OR_RETURN(m_publisher, Publisher::open(m_options, m_options.directory));
  return sync();
}

void CacheStore::Impl::files_changed() {
  const std::scoped_lock guard(m_mutex);
  if (m_open) (void)sync();  // should it fail, the next flush tries again and reports
}

/// RocksDB may merge files while they are being linked: then the list is asked for again.
Status CacheStore::Impl::sync() {
  static constexpr int k_attempts = 10;
  Status status;
  for (int attempt = 0; attempt < k_attempts; ++attempt) {
    const auto lost = m_publisher->sync(m_rocks->files(), m_catalog);
    if (lost.ok() && lost->empty()) return {};
    if (lost.ok()) {
      m_stats.evicted += lost->size();
      KILN_RETURN_IF_ERROR(forget(*lost));
      continue;
    }
    status = lost.status();
    if (status.code() != StatusCode::not_found) return status;
  }
  return status;
}

/* ---- reading */

Expected<std::optional<Artifact>> CacheStore::Impl::find(const Digest& digest) {
  const std::scoped_lock guard(m_mutex);
  if (m_catalog.artifact(digest) == nullptr) return std::optional<Artifact>();
  KILN_ASSIGN_OR_RETURN(const auto value, m_rocks->get(m_rocks->artifacts(), slice_of(digest)));
  if (!value) return std::optional<Artifact>();
  KILN_ASSIGN_OR_RETURN(Artifact artifact, decode_artifact(bytes_of(*value), digest));
  return std::optional(std::move(artifact));
}

/// Newest first. A record that is out of shape is passed over.
std::vector<Head> CacheStore::Impl::read_history(const Digest& key) {
  std::vector<Head> heads;
  const std::string prefix = records::head_prefix(key);
  const std::unique_ptr<rocksdb::Iterator> it(m_rocks->db().NewIterator(rocksdb::ReadOptions(), m_rocks->meta()));
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    if (auto head = records::decode_head(view(it->key()), view(it->value()))) heads.push_back(std::move(*head));
  }
  std::reverse(heads.begin(), heads.end());
  return heads;
}

Expected<std::vector<Head>> CacheStore::Impl::history(const Digest& key) {
  const std::scoped_lock guard(m_mutex);
  return read_history(key);
}

Expected<std::optional<Head>> CacheStore::Impl::head(const Digest& key) {
  const std::scoped_lock guard(m_mutex);
  const Catalog::HeadState* state = m_catalog.head(key);
  if (state == nullptr) return std::optional<Head>();
  const std::string record_key = records::head_key(key, state->generation);
  KILN_ASSIGN_OR_RETURN(const auto value, m_rocks->get(m_rocks->meta(), record_key));
  if (!value) return std::optional<Head>();
  return records::decode_head(record_key, *value);
}

Expected<std::optional<std::vector<uint8_t>>> CacheStore::Impl::content(const Digest& key) {
  const std::scoped_lock guard(m_mutex);
  KILN_ASSIGN_OR_RETURN(const auto value, m_rocks->get(m_rocks->meta(), records::content_key(key)));
  if (!value) return std::optional<std::vector<uint8_t>>();
  return std::optional(std::vector<uint8_t>(value->begin(), value->end()));
}

std::vector<Entry> CacheStore::Impl::list(const EntryFilter& filter) {
  const std::scoped_lock guard(m_mutex);
  std::vector<Entry> entries;
  for (const auto& [digest, artifact] : m_catalog.artifacts()) {
    if (entries.size() == filter.max_entries) break;
    if (filter.kind && *filter.kind != artifact.kind) continue;
    Entry entry{digest,
                artifact.kind,
                artifact.payload_bytes,
                artifact.created_ms,
                artifact.pinned,
                artifact.location.has_value(),
                {}};
    for (const Digest& key : artifact.keys) {
      const std::string record_key = records::head_key(key, m_catalog.head(key)->generation);
      const auto value = m_rocks->get(m_rocks->meta(), record_key);
      if (!value.ok() || !*value) continue;
      auto head = records::decode_head(record_key, **value);
      if (!head) continue;
      head->canonical_key.clear();
      entry.heads.push_back(std::move(*head));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

StoreStats CacheStore::Impl::stats() {
  const std::scoped_lock guard(m_mutex);
  StoreStats stats = m_stats;
  stats.artifacts = m_catalog.artifacts().size();
  stats.heads = m_catalog.heads().size();
  for (const LiveFile& file : m_rocks->files()) {
    ++stats.files;
    stats.file_bytes += file.size;
  }
  stats.index_generation = m_publisher->index_generation();
  stats.files_scanned = m_publisher->files_scanned();
  return stats;
}

/* ---- the facade */

Expected<std::unique_ptr<CacheStore>> CacheStore::open(const StoreOptions& options) {
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, Impl::open(options));
  return std::unique_ptr<CacheStore>(new CacheStore(std::move(impl)));
}

CacheStore::CacheStore(std::unique_ptr<Impl> impl) : m_impl(std::move(impl)) {}
CacheStore::~CacheStore() = default;

Status CacheStore::publish(const PublishBatch& batch) { return m_impl->publish(batch); }
Status CacheStore::flush() { return m_impl->flush(); }
Status CacheStore::republish() { return m_impl->republish(); }
Expected<std::optional<Artifact>> CacheStore::find(const Digest& artifact) const { return m_impl->find(artifact); }
Expected<std::optional<Head>> CacheStore::head(const Digest& key) const { return m_impl->head(key); }
Expected<std::optional<std::vector<uint8_t>>> CacheStore::content(const Digest& key) const {
  return m_impl->content(key);
}
Expected<std::vector<Head>> CacheStore::history(const Digest& key) const { return m_impl->history(key); }
std::vector<Entry> CacheStore::list(const EntryFilter& filter) const { return m_impl->list(filter); }
Status CacheStore::pin(const Digest& artifact) { return m_impl->set_pinned(artifact, true); }
Status CacheStore::unpin(const Digest& artifact) { return m_impl->set_pinned(artifact, false); }
Status CacheStore::evict() { return m_impl->evict(m_impl->options().capacity_bytes); }
Status CacheStore::evict(uint64_t capacity_bytes) { return m_impl->evict(capacity_bytes); }
Status CacheStore::erase(const Digest& artifact) { return m_impl->erase(artifact); }
Status CacheStore::keep_newest(const Digest& key, size_t count) { return m_impl->keep_newest(key, count); }
Status CacheStore::clear() { return m_impl->clear(); }
Expected<std::vector<Damage>> CacheStore::verify() const { return m_impl->verify(); }
StoreStats CacheStore::stats() const { return m_impl->stats(); }
const std::string& CacheStore::report() const { return m_impl->report(); }

}  // namespace kiln
