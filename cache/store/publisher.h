#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/format/sidecar.h"
#include "cache/store/catalog.h"
#include "cache/store/index_writer.h"
#include "cache/store/rocks.h"

namespace kiln {

/// The published folder: links to the store's files, their sidecars and the index. All of it is derived: it
/// can be deleted at any time, and opening the store makes it again.
///
/// Order matters to the readers: link, sidecar, slots when a file comes; slots, link, sidecar when it goes.
/// So a slot never names a file that is not there, but for an instant that a reader meets as a clean miss.
/// Threading: the store's mutex is held.
class Publisher {
 public:
  /// `directory` is the cache directory. Nothing is published before the first sync.
  static Expected<std::unique_ptr<Publisher>> open(const StoreOptions& options, const std::string& directory);

  /// Brings the folder in line with the store's live files (oldest first) and the catalog. Returns the
  /// artifacts whose only file is gone; the caller forgets them and syncs again. Errors: not_found when a
  /// file vanished meanwhile (list the files again); others as of the file system.
  Expected<std::vector<Digest>> sync(const std::vector<LiveFile>& live, Catalog& catalog);

  /// Where file `number` is published.
  std::string link_path(uint64_t number) const;
  uint64_t index_generation() const { return m_index ? m_index->generation() : 0; }
  uint64_t files_scanned() const { return m_files_scanned; }

 private:
  struct PublishedFile {
    Sidecar sidecar;
    uint64_t size = 0;
    uint32_t place = 0;  // in the index's file table
  };

  Publisher(const StoreOptions& options, std::string folder) : m_options(options), m_folder(std::move(folder)) {}
  Status adopt(const LiveFile& file, Catalog& catalog);
  Expected<Sidecar> sidecar_of(const LiveFile& file, bool linked_before, const Catalog& catalog);
  void locate(uint64_t number, const Sidecar& sidecar, Catalog& catalog);
  std::vector<Digest> retire(uint64_t number, Catalog& catalog);
  Status show_changes(Catalog& catalog);
  bool show_artifact(const Digest& digest, const Catalog& catalog);
  Status rebuild_index(const Catalog& catalog);
  void reap(const std::vector<LiveFile>& live);

  StoreOptions m_options;
  std::string m_folder;
  std::unique_ptr<IndexWriter> m_index;
  std::map<uint64_t, PublishedFile> m_files;
  uint64_t m_next_generation = 1;
  uint64_t m_files_scanned = 0;
};

}  // namespace kiln
