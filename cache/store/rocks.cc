#include "cache/store/rocks.h"

#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <cassert>

namespace kiln {
namespace {

constexpr char k_artifacts_family[] = "artifacts";
constexpr char k_meta_family[] = "meta";
/// FIFO drops files by itself above this size. It must never: pinned artifacts are written again first
/// (evict).
constexpr uint64_t k_unbounded_bytes = uint64_t{1} << 60;
/// Flushes of a few fresh kernels leave small files; this many of them are merged, so that files stay few.
constexpr int k_small_files_merged = 16;

class CompactionListener : public rocksdb::EventListener {
 public:
  explicit CompactionListener(std::function<void()> changed) : m_changed(std::move(changed)) {}
  void OnCompactionCompleted(rocksdb::DB*, const rocksdb::CompactionJobInfo& job) override {
    if (job.cf_name == k_artifacts_family) m_changed();
  }

 private:
  std::function<void()> m_changed;
};

rocksdb::DBOptions database_options(std::function<void()> files_changed) {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.max_open_files = -1;
  options.max_background_jobs = 2;
  options.max_total_wal_size = uint64_t{64} << 20;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.max_manifest_file_size = uint64_t{8} << 20;
  options.keep_log_file_num = 3;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.recycle_log_file_num = 0;
  options.listeners.push_back(std::make_shared<CompactionListener>(std::move(files_changed)));
  // A damaged block must not stop the store when files are merged: every value carries its own checksum and
  // digest.
  options.paranoid_checks = false;
  // No SstFileManager: it cuts files short while it deletes them, which is SIGBUS in whoever has them mapped.
  return options;
}

rocksdb::ColumnFamilyOptions meta_options() {
  rocksdb::ColumnFamilyOptions options;
  options.write_buffer_size = size_t{8} << 20;
  options.compression = rocksdb::kLZ4Compression;  // a graph of many layers repeats itself
  return options;
}

rocksdb::CompactionOptionsFIFO fifo_options(uint64_t max_bytes) {
  return rocksdb::CompactionOptionsFIFO(max_bytes, /*_allow_compaction=*/true);
}

}  // namespace

Status from_rocksdb(const rocksdb::Status& status, std::string_view doing) {
  if (status.ok()) return {};
  StatusCode code = StatusCode::unavailable;
  if (status.IsCorruption()) code = StatusCode::data_loss;
  if (status.IsIOError() && status.subcode() == rocksdb::Status::kPathNotFound) code = StatusCode::data_loss;
  if (status.IsNoSpace()) code = StatusCode::resource_exhausted;
  return error(code, "{}: {}", doing, status.ToString());
}

rocksdb::ColumnFamilyOptions artifact_options(const StoreOptions& options) {
  rocksdb::BlockBasedTableOptions table;
  table.block_size = KILN_PAGE_BYTES;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.no_block_cache = true;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));

  rocksdb::ColumnFamilyOptions family;
  family.compaction_style = rocksdb::kCompactionStyleFIFO;
  family.compaction_options_fifo = fifo_options(k_unbounded_bytes);
  family.level0_file_num_compaction_trigger = k_small_files_merged;
  family.num_levels = 1;
  family.compression = rocksdb::kNoCompression;
  family.bottommost_compression = rocksdb::kDisableCompressionOption;
  family.write_buffer_size = options.write_buffer_bytes;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return family;
}

Expected<std::unique_ptr<Rocks>> Rocks::open(const StoreOptions& options, const std::string& directory,
                                             std::function<void()> files_changed) {
  std::unique_ptr<Rocks> rocks(new Rocks);
  rocks->m_options = options;
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, {}},
      {k_artifacts_family, artifact_options(options)},
      {k_meta_family, meta_options()},
  };
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened =
      rocksdb::DB::Open(database_options(std::move(files_changed)), directory, families, &rocks->m_handles, &db);
  KILN_RETURN_IF_ERROR(from_rocksdb(opened, "opening the store"));
  rocks->m_db.reset(db);
  rocks->m_artifacts = rocks->m_handles[1];
  rocks->m_meta = rocks->m_handles[2];
  return rocks;
}

Rocks::~Rocks() {
  for (rocksdb::ColumnFamilyHandle* handle : m_handles) {
    m_db->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  }
}

void Rocks::read_all() {
  for (rocksdb::ColumnFamilyHandle* family : m_handles) {
    const std::unique_ptr<rocksdb::Iterator> it(m_db->NewIterator(rocksdb::ReadOptions(), family));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
    }
    it->status().PermitUncheckedError();
  }
}

Status Rocks::write(rocksdb::WriteBatch& batch) {
  // The log is written, not synced: it survives this process, and a cache may lose its last second to a power
  // cut.
  Status written = from_rocksdb(m_db->Write(rocksdb::WriteOptions(), &batch), "writing to the store");
  // A write that failed may have left part of itself in the log, which recovery reads up to there: what is written next
  // must not depend on it.
  if (written.ok() && m_log_is_torn) {
    KILN_RETURN_IF_ERROR(
        from_rocksdb(m_db->Flush(rocksdb::FlushOptions(), {m_artifacts, m_meta}), "leaving a torn log"));
  }
  m_log_is_torn = !written.ok();
  return written;
}

Expected<std::optional<std::string>> Rocks::get(rocksdb::ColumnFamilyHandle* family, const rocksdb::Slice& key) {
  std::string value;
  const rocksdb::Status status = m_db->Get(rocksdb::ReadOptions(), family, key, &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  KILN_RETURN_IF_ERROR(from_rocksdb(status, "reading from the store"));
  return std::optional(std::move(value));
}

Status Rocks::flush_artifacts() {
  return from_rocksdb(m_db->Flush(rocksdb::FlushOptions(), m_artifacts), "flushing the store");
}

std::vector<LiveFile> Rocks::files() {
  std::vector<rocksdb::LiveFileMetaData> live;
  m_db->GetLiveFilesMetaData(&live);
  std::erase_if(live, [](const auto& file) { return file.column_family_name != k_artifacts_family; });
  std::sort(live.begin(), live.end(), [](const auto& a, const auto& b) { return a.largest_seqno < b.largest_seqno; });
  std::vector<LiveFile> files;
  for (const auto& file : live) files.push_back({file.file_number, file.db_path + file.name, file.size});
  return files;
}

Status Rocks::drop_oldest(const LiveFile& oldest) {
  uint64_t total = 0;
  for (const LiveFile& file : files()) total += file.size;
  // The limit is lowered to exactly what remains without the oldest file, and lifted again. Meanwhile RocksDB
  // must not compact by itself: it would drop one file for the new limit, and CompactRange the next.
  const auto limit = [this](uint64_t bytes, bool automatic) {
    const std::string fifo = "{max_table_files_size=" + std::to_string(bytes) + ";allow_compaction=true}";
    return from_rocksdb(m_db->SetOptions(m_artifacts, {{"disable_auto_compactions", automatic ? "false" : "true"},
                                                       {"compaction_options_fifo", fifo}}),
                        "setting the limit");
  };
  KILN_RETURN_IF_ERROR(limit(total - oldest.size, false));
  const rocksdb::Status dropped = m_db->CompactRange(rocksdb::CompactRangeOptions(), m_artifacts, nullptr, nullptr);
  KILN_RETURN_IF_ERROR(limit(k_unbounded_bytes, true));
  return from_rocksdb(dropped, "dropping the oldest file");
}

Status Rocks::recreate_artifacts() {
  KILN_RETURN_IF_ERROR(from_rocksdb(m_db->DropColumnFamily(m_artifacts), "dropping all artifacts"));
  KILN_RETURN_IF_ERROR(from_rocksdb(m_db->DestroyColumnFamilyHandle(m_artifacts), "dropping all artifacts"));
  std::erase(m_handles, m_artifacts);
  m_artifacts = nullptr;
  KILN_RETURN_IF_ERROR(from_rocksdb(
      m_db->CreateColumnFamily(artifact_options(m_options), k_artifacts_family, &m_artifacts), "starting anew"));
  m_handles.push_back(m_artifacts);
  return {};
}

}  // namespace kiln
