// The cache's formats under arbitrary bytes: decoders, and the reader on an index and an artifact file that are nearly right.
// The harness repairs some of the checks, or no mutation would get past them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cache/format/artifact_bytes.h"
#include "cache/format/checksum.h"
#include "cache/format/sidecar.h"
#include "cache/reader/reader.h"

namespace {

constexpr uint32_t k_files = 2;
constexpr uint64_t k_capacity = 64;

enum Repair : uint8_t { repair_header = 1, repair_file = 2, repair_slot = 4, repair_artifact = 8 };

std::string make_directory() {
  char name[] = "/tmp/kiln-cache-fuzz-XXXXXX";
  const std::string directory = mkdtemp(name);
  mkdir((directory + "/pub").c_str(), 0700);
  static std::string remove_at_exit;
  remove_at_exit = "rm -rf " + directory;
  std::atexit([] { (void)!std::system(remove_at_exit.c_str()); });
  return directory;
}

void write_file(const std::string& path, const void* bytes, size_t size) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write(fd, bytes, size) != static_cast<ssize_t>(size)) std::abort();
  close(fd);
}

/// Takes `size` bytes off the input, zeros when it has ended.
void take(const uint8_t*& data, size_t& size, void* out, size_t wanted) {
  const size_t part = std::min(size, wanted);
  std::memset(out, 0, wanted);
  if (part != 0) std::memcpy(out, data, part);
  data += part;
  size -= part;
}

void read_all(const kiln_view& view) {
  volatile uint64_t sum = 0;
  for (uint64_t i = 0; i < view.header.payload_size; ++i) sum = sum + view.payload[i];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)kiln::check_artifact({data, size});
  (void)kiln::decode_sidecar({data, size}, 1000);

  static const std::string directory = make_directory();
  uint8_t repair = 0;
  kiln_index_header header{KILN_INDEX_MAGIC, KILN_INDEX_VERSION, k_files, 1, k_capacity, {}, 0};
  kiln_index_header header_noise;
  kiln_index_file file{};
  kiln_index_slot slot{};
  kiln_artifact_header artifact{};
  take(data, size, &repair, sizeof repair);
  take(data, size, &slot, sizeof slot);
  take(data, size, &artifact, sizeof artifact);
  take(data, size, &header_noise, sizeof header_noise);
  std::vector<uint8_t> content(sizeof artifact);
  content.insert(content.end(), data, data + size);

  for (size_t i = 0; i < sizeof header; ++i) {
    reinterpret_cast<uint8_t*>(&header)[i] ^= reinterpret_cast<uint8_t*>(&header_noise)[i];
  }
  if (repair & repair_header) header.check = kiln_index_header_check(&header);
  if (repair & repair_artifact) {
    artifact.magic = KILN_ARTIFACT_MAGIC;
    artifact.version = KILN_ARTIFACT_VERSION;
    artifact.payload_offset = sizeof artifact;
    artifact.payload_size = size;
    artifact.checksum = kiln_artifact_checksum(&artifact, content.data() + sizeof artifact, size);
    slot.checksum = artifact.checksum;
    slot.artifact_kind = artifact.kind;
    slot.offset %= 2;
    slot.length = content.size() - slot.offset % 2;
    std::memcpy(slot.digest, artifact.digest, sizeof slot.digest);
  }
  std::memcpy(content.data(), &artifact, sizeof artifact);
  file.size = content.size();
  std::strcpy(file.name, "1.sst");
  if (repair & repair_file) file.check = kiln_index_file_check(&file);
  if (repair & repair_slot) {
    slot.sequence = (slot.sequence | 2) & ~uint64_t{1};
    slot.slot_kind = KILN_SLOT_HEAD + slot.slot_kind % 2;
    slot.file %= k_files + 1;
    slot.check = kiln_index_slot_check(&slot);
  }

  std::vector<uint8_t> index(kiln_index_size(k_files, k_capacity));
  std::memcpy(index.data(), &header, sizeof header);
  std::memcpy(index.data() + kiln_index_files_offset(), &file, sizeof file);
  const uint64_t place = kiln_index_home(slot.key) % k_capacity;
  std::memcpy(index.data() + kiln_index_slots_offset(k_files) + place * sizeof slot, &slot, sizeof slot);
  write_file(directory + "/pub/index.1", index.data(), index.size());
  write_file(directory + "/pub/1.sst", content.data(), content.size());
  write_file(directory + "/pub/CURRENT", "index.1\n", 8);

  kiln_reader* reader = kiln_reader_open(directory.c_str());
  kiln_view view;
  const uint8_t* code;
  // Callers name a kind that there is, whatever the slot says.
  const auto kind = static_cast<kiln_artifact_kind>(1 + (slot.artifact_kind - 1u) % KILN_ARTIFACT_CAPTURE);
  if (kiln_reader_find_key(reader, slot.key, kind, &view) == KILN_HIT) {
    read_all(view);
    (void)kiln_reader_map_code(reader, &view, &code);
  }
  if (kiln_reader_find_digest(reader, slot.key, kind, &view) == KILN_HIT) read_all(view);
  kiln_reader_close(reader);
  return 0;
}
