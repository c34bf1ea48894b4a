#ifndef KILN_CACHE_FORMAT_CHECKSUM_H
#define KILN_CACHE_FORMAT_CHECKSUM_H

/* The checksums of the cache's formats, for the C reader and the C++ store alike. They find damage and prove
 * no origin. XXH3 is inlined, so that the reader links libc alone. */

#define XXH_INLINE_ALL
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

#include "cache/format/artifact.h"
#include "cache/format/index.h"

/* Seeding with the launch data's hash covers both without copying them side by side. */
static inline uint64_t kiln_artifact_checksum(const struct kiln_artifact_header* header, const void* payload,
                                              size_t payload_size) {
  return XXH3_64bits_withSeed(payload, payload_size, XXH3_64bits(&header->entry, KILN_LAUNCH_DATA_BYTES));
}

static inline uint64_t kiln_index_header_check(const struct kiln_index_header* header) {
  return XXH3_64bits(header, offsetof(struct kiln_index_header, check));
}

static inline uint64_t kiln_index_file_check(const struct kiln_index_file* file) {
  return XXH3_64bits(&file->size, sizeof *file - offsetof(struct kiln_index_file, size));
}

/* Without the sequence number, which changes while the content does not. */
static inline uint64_t kiln_index_slot_check(const struct kiln_index_slot* slot) {
  const size_t first = offsetof(struct kiln_index_slot, slot_kind);
  return XXH3_64bits((const uint8_t*)slot + first, offsetof(struct kiln_index_slot, check) - first);
}

#endif /* KILN_CACHE_FORMAT_CHECKSUM_H */
