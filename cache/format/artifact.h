#ifndef KILN_CACHE_FORMAT_ARTIFACT_H
#define KILN_CACHE_FORMAT_ARTIFACT_H

/* The artifact: immutable bytes named by their digest. C, so that the reader links libc alone.
 *
 *   artifact  = header padding payload
 *   header    = 128 bytes, below; all integers little endian
 *   padding   = zeros up to payload_offset
 *   payload   = payload_size bytes
 *
 * Launch data are the header's last 64 bytes. The digest covers kind, launch data and payload
 * (artifact_bytes.h says how); the checksum is XXH3-64 of the payload, seeded with XXH3-64 of the launch data
 * (checksum.h). A reader checks magic, version, kind, bounds, digest against the slot, checksum. Bump
 * KILN_ARTIFACT_VERSION if anything here changes. */

#include <stdint.h>

#define KILN_ARTIFACT_MAGIC 0x4e4c494bu /* "KILN" */
#define KILN_ARTIFACT_VERSION 1u
#define KILN_PAGE_BYTES 4096u
#define KILN_LAUNCH_DATA_BYTES 64u /* from `entry` to the end of the header */

enum kiln_artifact_kind {
  KILN_ARTIFACT_CODE = 1,    /* machine code of one kernel */
  KILN_ARTIFACT_PLAN = 2,    /* a region's plan (flatbuffer) */
  KILN_ARTIFACT_PROGRAM = 3, /* an executable graph (flatbuffer) */
  KILN_ARTIFACT_CAPTURE = 4, /* a framework's capture, opaque to the cache */
  KILN_ARTIFACT_RECORD = 5,  /* what was measured of a kernel's candidates (JSON) */
  KILN_ARTIFACT_EXPORT = 6   /* what an exported model takes, gives and is made of (JSON) */
};

struct kiln_artifact_header {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  uint32_t payload_offset; /* from the header's first byte */
  uint32_t reserved;
  uint64_t payload_size;
  uint64_t checksum;
  uint8_t digest[32];
  /* launch data, for code; zero otherwise */
  uint64_t entry;
  uint64_t tasks;
  uint64_t workspace_bytes;
  uint64_t features;
  uint8_t backend[16]; /* name, zero padded */
  uint8_t unused[16];
};

#ifdef __cplusplus
static_assert(sizeof(struct kiln_artifact_header) == 128, "bump KILN_ARTIFACT_VERSION if this changes");
#else
_Static_assert(sizeof(struct kiln_artifact_header) == 128, "bump KILN_ARTIFACT_VERSION if this changes");
#endif

#endif /* KILN_CACHE_FORMAT_ARTIFACT_H */
