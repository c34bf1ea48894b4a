#include "cache/store/index_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "cache/format/checksum.h"

namespace kiln {
namespace {

constexpr double k_load_max = 0.7;

Status failed(const std::string& path, int code = errno) {
  const bool is_full = code == ENOSPC || code == EDQUOT;
  return error(is_full ? StatusCode::resource_exhausted : StatusCode::unavailable, "{}: {}", path, std::strerror(code));
}

bool write_at(int fd, const void* bytes, size_t size, uint64_t offset) {
  for (const auto* next = static_cast<const uint8_t*>(bytes); size > 0;) {
    const ssize_t wrote = pwrite(fd, next, size, static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    next += wrote;
    offset += static_cast<uint64_t>(wrote);
    size -= static_cast<size_t>(wrote);
  }
  return true;
}

}  // namespace

Expected<std::unique_ptr<IndexWriter>> IndexWriter::create(const std::string& path, uint64_t generation,
                                                           uint64_t capacity, uint32_t file_capacity) {
  assert(std::has_single_bit(capacity) && "probes wrap by masking");
  if (capacity > KILN_INDEX_CAPACITY_MAX || file_capacity > KILN_INDEX_FILES_MAX) {
    return error(StatusCode::resource_exhausted, "index of {} slots and {} files, at most {} and {}", capacity,
                 file_capacity, KILN_INDEX_CAPACITY_MAX, KILN_INDEX_FILES_MAX);
  }
  const size_t size = kiln_index_size(file_capacity, capacity);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return failed(path);
  const int allocated = posix_fallocate(fd.get(), 0, static_cast<off_t>(size));
  void* image =
      allocated == 0 ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
  if (image == MAP_FAILED) {
    const Status status = failed(fmt::format("{}: {} bytes", path, size), allocated != 0 ? allocated : errno);
    ::unlink(path.c_str());
    return status;
  }
  auto* header = static_cast<kiln_index_header*>(image);
  *header = {.magic = KILN_INDEX_MAGIC,
             .version = KILN_INDEX_VERSION,
             .file_capacity = file_capacity,
             .generation = generation,
             .capacity = capacity};
  header->check = kiln_index_header_check(header);
  return std::unique_ptr<IndexWriter>(new IndexWriter(path, std::move(fd), static_cast<uint8_t*>(image), size));
}

IndexWriter::IndexWriter(std::string path, UniqueFd fd, uint8_t* image, size_t size)
    : m_path(std::move(path)),
      m_fd(std::move(fd)),
      m_size(size),
      m_header(reinterpret_cast<kiln_index_header*>(image)),
      m_files(reinterpret_cast<kiln_index_file*>(image + kiln_index_files_offset())),
      m_slots(reinterpret_cast<kiln_index_slot*>(image + kiln_index_slots_offset(m_header->file_capacity))) {}

IndexWriter::~IndexWriter() { munmap(m_header, m_size); }

Status IndexWriter::begin() {
  if (!write_at(m_fd.get(), m_header, m_size, 0)) return failed(m_path);
  m_begun = true;
  return {};
}

/// What the image holds at [first, first + size) to the same place of the file.
void IndexWriter::write_through(const void* first, size_t size) {
  if (!m_begun) return;
  const auto offset = static_cast<uint64_t>(static_cast<const uint8_t*>(first) - reinterpret_cast<uint8_t*>(m_header));
  m_is_whole = write_at(m_fd.get(), first, size, offset) && m_is_whole;
}

/// One write: between two of them this process may be stopped for longer than readers wait. `from` carries a sequence of 0,
/// which is not stored.
void IndexWriter::write_slot(kiln_index_slot* slot, const kiln_index_slot& from) {
  const uint64_t sequence = slot->sequence;
  *slot = from;
  slot->sequence = sequence + 2;
  write_through(slot, sizeof *slot);
}

std::optional<uint32_t> IndexWriter::add_file(const std::string& name, uint64_t size, uint64_t identity) {
  if (m_file_count == m_header->file_capacity) return std::nullopt;
  kiln_index_file file{.size = size, .identity = identity};
  assert(name.size() < sizeof file.name && "file names are numbers");
  std::memcpy(file.name, name.data(), name.size());
  file.check = kiln_index_file_check(&file);
  m_files[m_file_count] = file;  // no slot names it yet
  write_through(&m_files[m_file_count], sizeof file);
  return m_file_count++;
}

kiln_index_slot* IndexWriter::probe(kiln_slot_kind kind, const uint8_t key[32]) const {
  const uint64_t mask = m_header->capacity - 1;
  const uint64_t home = kiln_index_home(key);
  for (uint64_t probe = 0; probe < KILN_INDEX_PROBES && probe <= mask; ++probe) {
    kiln_index_slot* slot = &m_slots[(home + probe) & mask];
    if (slot->sequence == 0) return slot;
    if (slot->slot_kind == kind && std::memcmp(slot->key, key, sizeof slot->key) == 0) return slot;
  }
  return nullptr;
}

bool IndexWriter::put(const kiln_index_slot& slot) {
  kiln_index_slot* place = probe(static_cast<kiln_slot_kind>(slot.slot_kind), slot.key);
  if (place == nullptr) return false;
  const bool fresh = place->sequence == 0;
  if (fresh && static_cast<double>(m_used + 1) > k_load_max * static_cast<double>(m_header->capacity)) {
    return false;
  }
  kiln_index_slot checked = slot;
  checked.check = kiln_index_slot_check(&checked);
  write_slot(place, checked);
  m_used += fresh;
  return m_is_whole;
}

void IndexWriter::remove(kiln_slot_kind kind, const uint8_t key[32]) {
  kiln_index_slot* place = probe(kind, key);
  if (place != nullptr && place->sequence != 0) write_slot(place, kiln_index_slot{});
}

}  // namespace kiln
