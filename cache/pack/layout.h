#pragma once

#include <cstdint>

#include "base/ceil_div.h"
#include "cache/format/artifact.h"

/// The structs of a pack's file. Little endian, fixed width; docs/packs.md has the grammar.
namespace kiln {

inline constexpr uint64_t k_pack_magic = 0x314b4341504c4e4bull;  // "KNLPACK1"
inline constexpr uint32_t k_pack_version = 1;
/// Where each piece of the body begins: a multiple of this, of its first byte on.
inline constexpr uint64_t k_pack_alignment = 64;

struct PackHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t artifact_count;
  uint32_t head_count;
  uint32_t reserved;
  uint64_t body_size;     // of what begins at pack_body_offset()
  uint8_t signer[32];     // its public key; zeros: nobody signed
  uint8_t signature[64];  // of the SHA-256 of header, with zeros here, and manifest
};
static_assert(sizeof(PackHeader) == 128, "bump k_pack_version if this changes");

/// One artifact, in its own format (cache/format/artifact.h). They ascend by digest.
struct PackedArtifact {
  uint8_t digest[32];
  uint8_t sha256[32];
  uint64_t offset;  // in the body
  uint64_t length;
  uint16_t kind;  // kiln_artifact_kind
  uint16_t reserved[3];
};
static_assert(sizeof(PackedArtifact) == 88, "bump k_pack_version if this changes");

/// One key, and where its description lies. They ascend by key.
struct PackedHead {
  uint8_t key[32];
  uint8_t artifact[32];  // one of the pack's
  uint8_t sha256[32];    // of the description
  uint64_t offset;
  uint64_t length;
  uint32_t generation;
  uint32_t reserved;
};
static_assert(sizeof(PackedHead) == 120, "bump k_pack_version if this changes");

inline uint64_t pack_manifest_size(uint64_t artifacts, uint64_t heads) {
  return artifacts * sizeof(PackedArtifact) + heads * sizeof(PackedHead);
}
/// Where the body begins: the first page after the manifest.
inline uint64_t pack_body_offset(uint64_t artifacts, uint64_t heads) {
  return round_up(sizeof(PackHeader) + pack_manifest_size(artifacts, heads), KILN_PAGE_BYTES);
}

}  // namespace kiln
