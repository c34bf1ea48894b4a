#include "cache/store/sst_scan.h"

#include <fcntl.h>
#include <rocksdb/sst_file_reader.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_set>

/// Where in the file is a value? RocksDB's API gives the bytes of each value but not their place, and its
/// format is none of our business. So the value's first 128 bytes, our header, which holds its digest and so
/// occurs once, are searched in the file, beginning where the last value ended: values lie in key order, the
/// next one is a few bytes or pages on, and the whole search reads the file once. Should the order ever
/// differ, the search begins again at the front. A place counts only when the whole value is there.
namespace kiln {
namespace {

class FileView {
 public:
  static Expected<FileView> open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return error(StatusCode::unavailable, "{}: {}", path, std::strerror(errno));
    struct stat status{};
    void* base = MAP_FAILED;
    if (fstat(fd, &status) == 0 && status.st_size > 0) {
      base = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    }
    ::close(fd);
    if (base == MAP_FAILED) return error(StatusCode::unavailable, "{}: cannot be mapped", path);
    FileView view;
    view.m_bytes = {static_cast<const uint8_t*>(base), static_cast<size_t>(status.st_size)};
    return view;
  }
  FileView(FileView&& other) noexcept : m_bytes(std::exchange(other.m_bytes, {})), m_cursor(other.m_cursor) {}
  FileView& operator=(FileView&&) = delete;
  ~FileView() {
    if (!m_bytes.empty()) munmap(const_cast<uint8_t*>(m_bytes.data()), m_bytes.size());
  }

  /// The offset of `value`, which starts with a header; nothing when the file does not hold it in one piece.
  std::optional<uint64_t> locate(std::span<const uint8_t> value) {
    auto offset = search(value, m_cursor);
    if (!offset && m_cursor != 0) offset = search(value, 0);
    if (offset) m_cursor = *offset + value.size();
    return offset;
  }

 private:
  FileView() = default;

  std::optional<uint64_t> search(std::span<const uint8_t> value, size_t from) const {
    const auto rest = m_bytes.subspan(from);
    const void* found = memmem(rest.data(), rest.size(), value.data(), sizeof(kiln_artifact_header));
    if (found == nullptr) return std::nullopt;
    const auto offset = static_cast<size_t>(static_cast<const uint8_t*>(found) - m_bytes.data());
    if (value.size() > m_bytes.size() - offset) return std::nullopt;
    if (std::memcmp(found, value.data(), value.size()) != 0) return std::nullopt;
    return offset;
  }

  std::span<const uint8_t> m_bytes;
  size_t m_cursor = 0;
};

class Scan {
 public:
  Scan(FileView file, rocksdb::Iterator& iterator) : m_file(std::move(file)), m_iterator(iterator) {}

  std::vector<SidecarEntry> run(std::span<const Digest> wanted) {
    for (m_iterator.SeekToFirst(); m_iterator.Valid(); m_iterator.Next()) add_current();
    if (m_iterator.status().ok()) return std::move(m_entries);
    // A damaged block ends the walk. Those behind it are asked for by name.
    for (const Digest& digest : wanted) {
      if (m_seen.contains(digest)) continue;
      m_iterator.Seek(slice_of(digest));
      if (m_iterator.Valid() && m_iterator.key() == slice_of(digest)) add_current();
    }
    return std::move(m_entries);
  }

 private:
  /// What does not check out is left out: it is then not mapped, and verify() tells of it.
  void add_current() {
    const rocksdb::Slice key = m_iterator.key();
    const rocksdb::Slice raw = m_iterator.value();
    const std::span value(reinterpret_cast<const uint8_t*>(raw.data()), raw.size());
    const auto header = check_artifact(value);
    if (!header.ok() || key != rocksdb::Slice(reinterpret_cast<const char*>(header->digest), 32)) return;
    const auto offset = m_file.locate(value);
    if (!offset) return;
    SidecarEntry entry{.offset = *offset,
                       .length = value.size(),
                       .checksum = header->checksum,
                       .payload_offset = header->payload_offset,
                       .kind = header->kind};
    std::memcpy(entry.digest, header->digest, sizeof entry.digest);
    Digest digest;
    std::memcpy(digest.bytes.data(), header->digest, digest.bytes.size());
    m_seen.insert(digest);
    m_entries.push_back(entry);
  }

  FileView m_file;
  rocksdb::Iterator& m_iterator;
  std::vector<SidecarEntry> m_entries;
  std::unordered_set<Digest> m_seen;
};

}  // namespace

Expected<std::vector<SidecarEntry>> scan_sst(const StoreOptions& options, const std::string& path,
                                             std::span<const Digest> wanted) {
  KILN_ASSIGN_OR_RETURN(FileView file, FileView::open(path));
  rocksdb::SstFileReader reader(rocksdb::Options(rocksdb::DBOptions(), artifact_options(options)));
  const Status opened = from_rocksdb(reader.Open(path), "scanning " + path);
  if (opened.code() == StatusCode::data_loss) return std::vector<SidecarEntry>();  // nothing in it can be mapped
  KILN_RETURN_IF_ERROR(opened);
  rocksdb::ReadOptions read;
  read.verify_checksums = true;
  const std::unique_ptr<rocksdb::Iterator> iterator(reader.NewIterator(read));
  return Scan(std::move(file), *iterator).run(wanted);
}

}  // namespace kiln
