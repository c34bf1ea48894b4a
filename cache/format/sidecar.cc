#include "cache/format/sidecar.h"

#include <cstring>

#include "cache/format/checksum.h"

namespace kiln {
namespace {

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t count;
  uint64_t file_size;
  uint64_t check;
};
static_assert(sizeof(Header) == 32, "bump k_sidecar_version if this changes");

uint64_t check_of(const Header& header, const void* entries, size_t size) {
  return XXH3_64bits_withSeed(entries, size, XXH3_64bits(&header, offsetof(Header, check)));
}

}  // namespace

std::vector<uint8_t> encode_sidecar(std::span<const SidecarEntry> entries, uint64_t file_size) {
  Header header{k_sidecar_magic, k_sidecar_version, static_cast<uint32_t>(entries.size()), file_size, 0};
  header.check = check_of(header, entries.data(), entries.size_bytes());
  std::vector<uint8_t> bytes(sizeof header + entries.size_bytes());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!entries.empty()) std::memcpy(bytes.data() + sizeof header, entries.data(), entries.size_bytes());
  return bytes;
}

Expected<Sidecar> decode_sidecar(std::span<const uint8_t> bytes, uint64_t file_size) {
  const auto damaged = [](const char* what) { return Status(StatusCode::data_loss, what); };
  Header header;
  if (bytes.size() < sizeof header) return damaged("sidecar is shorter than its header");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != k_sidecar_magic || header.version != k_sidecar_version) return damaged("not a sidecar");
  if (header.file_size != file_size) return damaged("sidecar of a file of another size");
  if (bytes.size() != sizeof header + uint64_t{header.count} * sizeof(SidecarEntry)) {
    return damaged("sidecar has another size than its header says");
  }
  const auto entries = bytes.subspan(sizeof header);
  if (header.check != check_of(header, entries.data(), entries.size())) {
    return damaged("sidecar's checksum does not match");
  }
  Sidecar sidecar{header.check, std::vector<SidecarEntry>(header.count)};
  if (header.count != 0) std::memcpy(sidecar.entries.data(), entries.data(), entries.size());
  for (const SidecarEntry& entry : sidecar.entries) {
    if (entry.length > file_size || entry.offset > file_size - entry.length) {
      return damaged("sidecar names bytes beyond its file");
    }
  }
  return sidecar;
}

}  // namespace kiln
