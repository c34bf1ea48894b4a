#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/expected.h"
#include "base/fd.h"
#include "cache/format/index.h"

namespace kiln {

/// The one writer of an index file (cache/format/index.h). Readers see each change whole, or not yet. It has an image of
/// the file in memory and reads nothing back: whatever somebody does to the file, the image stays right.
/// Threading: one caller at a time.
class IndexWriter {
 public:
  /// Creates the file; its blocks are allocated, so that a full disk is an error here and not later. Nothing is in it
  /// before begin().
  static Expected<std::unique_ptr<IndexWriter>> create(const std::string& path, uint64_t generation, uint64_t capacity,
                                                       uint32_t file_capacity);
  ~IndexWriter();
  IndexWriter(const IndexWriter&) = delete;
  IndexWriter& operator=(const IndexWriter&) = delete;

  uint64_t generation() const { return m_header->generation; }

  /// The file's place in the table; nothing when the table is full.
  std::optional<uint32_t> add_file(const std::string& name, uint64_t size, uint64_t identity);

  /// Writes what was put so far; from here on each change goes to the file at once.
  Status begin();

  /// Writes the slot of (slot.slot_kind, slot.key), replacing an older one. False when the index must be made anew: it
  /// must grow, or could not be written.
  bool put(const kiln_index_slot& slot);
  /// Not found is fine.
  void remove(kiln_slot_kind kind, const uint8_t key[32]);

 private:
  IndexWriter(std::string path, UniqueFd fd, uint8_t* image, size_t size);
  kiln_index_slot* probe(kiln_slot_kind kind, const uint8_t key[32]) const;
  void write_slot(kiln_index_slot* slot, const kiln_index_slot& from);
  void write_through(const void* first, size_t size);

  const std::string m_path;
  const UniqueFd m_fd;
  const size_t m_size;
  kiln_index_header* m_header;
  kiln_index_file* m_files;
  kiln_index_slot* m_slots;
  uint32_t m_file_count = 0;
  uint64_t m_used = 0;  // slots ever written: removed ones lengthen probes too
  bool m_begun = false;
  bool m_is_whole = true;  // the file has all of the image
};

}  // namespace kiln
