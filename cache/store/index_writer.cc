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

/// The writer's half of the seqlock. `from` carries a sequence of 0, which is not stored.
void write_slot(kiln_index_slot* shared, const kiln_index_slot& from) {
  uint64_t words[KILN_SLOT_WORDS];
  std::memcpy(words, &from, sizeof words);
  auto* to = reinterpret_cast<uint64_t*>(shared);
  const uint64_t sequence = to[0];
  __atomic_store_n(&to[0], sequence + 1, __ATOMIC_RELEASE);
  for (size_t word = 1; word < KILN_SLOT_WORDS; ++word) __atomic_store_n(&to[word], words[word], __ATOMIC_RELEASE);
  __atomic_store_n(&to[0], sequence + 2, __ATOMIC_RELEASE);
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
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return error(StatusCode::unavailable, "{}: {}", path, std::strerror(errno));
  const int allocated = posix_fallocate(fd, 0, static_cast<off_t>(size));
  void* base = allocated == 0 ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  const int mapped = errno;
  ::close(fd);
  if (base == MAP_FAILED) {
    ::unlink(path.c_str());
    return error(StatusCode::resource_exhausted, "{}: {} bytes: {}", path, size,
                 std::strerror(allocated != 0 ? allocated : mapped));
  }
  auto* header = static_cast<kiln_index_header*>(base);
  *header = {.magic = KILN_INDEX_MAGIC,
             .version = KILN_INDEX_VERSION,
             .file_capacity = file_capacity,
             .generation = generation,
             .capacity = capacity};
  header->check = kiln_index_header_check(header);
  return std::unique_ptr<IndexWriter>(new IndexWriter(static_cast<uint8_t*>(base), size));
}

IndexWriter::IndexWriter(uint8_t* base, size_t size)
    : m_size(size),
      m_header(reinterpret_cast<kiln_index_header*>(base)),
      m_files(reinterpret_cast<kiln_index_file*>(base + kiln_index_files_offset())),
      m_slots(reinterpret_cast<kiln_index_slot*>(base + kiln_index_slots_offset(m_header->file_capacity))) {}

IndexWriter::~IndexWriter() { munmap(m_header, m_size); }

std::optional<uint32_t> IndexWriter::add_file(const std::string& name, uint64_t size, uint64_t identity) {
  if (m_file_count == m_header->file_capacity) return std::nullopt;
  kiln_index_file file{.size = size, .identity = identity};
  assert(name.size() < sizeof file.name && "file names are numbers");
  std::memcpy(file.name, name.data(), name.size());
  file.check = kiln_index_file_check(&file);
  m_files[m_file_count] = file;  // no slot names it yet; the slot's release store publishes it
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
  return true;
}

void IndexWriter::remove(kiln_slot_kind kind, const uint8_t key[32]) {
  kiln_index_slot* place = probe(kind, key);
  if (place != nullptr && place->sequence != 0) write_slot(place, kiln_index_slot{});
}

}  // namespace kiln
