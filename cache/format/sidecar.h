#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/expected.h"
#include "cache/format/artifact.h"

/// The sidecar pub/<n>.kidx of a store file: where its artifacts lie, so that a restart need not scan the
/// file.
///
///   sidecar = header entry{count}
///   header  = magic u64, version u32, count u32, file_size u64, check u64
///   entry   = SidecarEntry, 72 bytes
///
/// `check` is XXH3-64 of the entries, seeded with XXH3-64 of the header's other fields; it is also the
/// identity of the file in the index. Little endian. A sidecar that does not hold is ignored and written
/// anew.
namespace kiln {

inline constexpr uint64_t k_sidecar_magic = 0x3158444b4e4c4e4bull;
inline constexpr uint32_t k_sidecar_version = 1;

struct SidecarEntry {
  uint8_t digest[32];
  uint64_t offset;  // of the artifact's header in the file, in bytes
  uint64_t length;  // header, padding and payload
  uint64_t checksum;
  uint64_t payload_offset;  // from the artifact's header
  uint16_t kind;
  uint16_t reserved[3];
};
static_assert(sizeof(SidecarEntry) == 72, "bump k_sidecar_version if this changes");

struct Sidecar {
  uint64_t identity = 0;
  std::vector<SidecarEntry> entries;
};

std::vector<uint8_t> encode_sidecar(std::span<const SidecarEntry> entries, uint64_t file_size);

/// Errors: data_loss when anything is out of shape, or written for a file of another size.
Expected<Sidecar> decode_sidecar(std::span<const uint8_t> bytes, uint64_t file_size);

}  // namespace kiln
