#pragma once

#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>

#include "cache/store/catalog.h"
#include "cache/store/files.h"
#include "cache/store/publisher.h"
#include "cache/store/rocks.h"
#include "cache/store/store.h"

namespace kiln {

/// The truth is RocksDB; the catalog mirrors `meta` in memory; the publisher derives what clients map.
///
/// One mutex guards catalog and publisher. It is never held while waiting for RocksDB's own threads, since
/// these call files_changed: flush and evict let go of it around flushes and compactions.
class CacheStore::Impl {
 public:
  static Expected<std::unique_ptr<Impl>> open(const StoreOptions& options);
  ~Impl();

  Status publish(const PublishBatch& batch);
  Status flush();
  Status republish();
  Expected<std::optional<Artifact>> find(const Digest& digest);
  Expected<std::optional<Head>> head(const Digest& key);
  Expected<std::optional<std::vector<uint8_t>>> content(const Digest& key);
  Expected<std::vector<Head>> history(const Digest& key);
  std::vector<Entry> list(const EntryFilter& filter);
  Status set_pinned(const Digest& digest, bool pinned);
  Status evict(uint64_t capacity_bytes);
  Status erase(const Digest& digest);
  Status keep_newest(const Digest& key, size_t count);
  Status clear();
  Expected<std::vector<Damage>> verify();
  StoreStats stats();

  const StoreOptions& options() const { return m_options; }
  const std::string& report() const { return m_report; }

 private:
  Impl(const StoreOptions& options, files::Lock lock) : m_options(options), m_lock(std::move(lock)) {}

  // With the mutex held:
  Status load_catalog();
  void load_records(char tag, const std::function<bool(std::string_view key, std::string_view value)>& load,
                    rocksdb::WriteBatch& stale);
  Status forget_unlocated();
  void add_report(const std::string& sentence);
  Status sync();
  Status check_batch(const PublishBatch& batch, const std::vector<Digest>& digests);
  Status check_head(const Head& head);
  Status forget(const std::vector<Digest>& digests);
  Status fall_back_to_older_heads(const std::vector<Digest>& keys);
  std::vector<Head> read_history(const Digest& key);
  Status rewrite(const LiveFile& file, const std::unordered_set<Digest>& kept);
  std::optional<std::string> damage_of(const Digest& digest, const Catalog::ArtifactState& artifact);

  /// What is of use only together.
  struct Unit {
    std::unordered_set<Digest> members;
    uint64_t last_ms = 0;  // when any of what it has for itself was made or in use
  };
  std::unordered_map<Digest, std::vector<Digest>> needs_of_all();
  std::vector<Unit> units();

  // Without it:
  std::unordered_set<Digest> survivors(uint64_t capacity_bytes);
  Expected<uint64_t> evict_but(const std::unordered_set<Digest>& kept, uint64_t capacity_bytes);
  Status forget_incomplete();
  void files_changed();

  StoreOptions m_options;
  files::Lock m_lock;
  std::string m_report;
  std::mutex m_evict_mutex;          // one eviction or clearing at a time; taken before m_mutex
  std::shared_mutex m_family_mutex;  // clear replaces the column family while nobody flushes it
  std::mutex m_mutex;
  Catalog m_catalog;
  StoreStats m_stats;
  std::unique_ptr<Publisher> m_publisher;
  bool m_open = false;
  std::unique_ptr<Rocks> m_rocks;  // last: its threads call files_changed until it is gone
};

}  // namespace kiln
