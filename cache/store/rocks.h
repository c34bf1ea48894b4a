#pragma once

#include <rocksdb/db.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.h"
#include "cache/store/store.h"

namespace kiln {

/// RocksDB as the store uses it: options, errors, files. The choice of each option is in
/// docs/cache_format.md.
Status from_rocksdb(const rocksdb::Status& status, std::string_view doing);

inline rocksdb::Slice slice_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

/// The options a file of `artifacts` is written, and must be read, with.
rocksdb::ColumnFamilyOptions artifact_options(const StoreOptions& options);

struct LiveFile {
  uint64_t number = 0;
  std::string path;
  uint64_t size = 0;
};

class Rocks {
 public:
  /// `files_changed` is called from RocksDB's threads after a compaction.
  /// Errors: data_loss when the database is damaged; unavailable otherwise.
  static Expected<std::unique_ptr<Rocks>> open(const StoreOptions& options, const std::string& directory,
                                               std::function<void()> files_changed);
  ~Rocks();

  rocksdb::DB& db() { return *m_db; }
  rocksdb::ColumnFamilyHandle* artifacts() { return m_artifacts; }
  rocksdb::ColumnFamilyHandle* meta() { return m_meta; }

  /// What this acknowledged survives the process. One thread at a time.
  Status write(rocksdb::WriteBatch& batch);
  /// Nothing when there is no such key.
  Expected<std::optional<std::string>> get(rocksdb::ColumnFamilyHandle* family, const rocksdb::Slice& key);
  Status flush_artifacts();
  /// Touches every record, whatever is found.
  void read_all();

  /// The files of `artifacts`, oldest first.
  std::vector<LiveFile> files();
  /// Drops the oldest file, which must be `oldest`, as FIFO compaction does.
  Status drop_oldest(const LiveFile& oldest);
  /// Begins `artifacts` anew, empty.
  Status recreate_artifacts();

 private:
  Rocks() = default;
  StoreOptions m_options;
  std::unique_ptr<rocksdb::DB> m_db;
  std::vector<rocksdb::ColumnFamilyHandle*> m_handles;
  rocksdb::ColumnFamilyHandle* m_artifacts = nullptr;
  rocksdb::ColumnFamilyHandle* m_meta = nullptr;
  bool m_log_is_torn = false;  // a write failed, and nothing was flushed since
};

}  // namespace kiln
