#ifndef KILN_CACHE_READER_READER_H
#define KILN_CACHE_READER_READER_H

/* Compiled kernels read from the cache directory. Plain C on libc and XXH3.
 *
 * What is found is copied into this process's own memory and checked there, so nothing that happens to a file
 * afterwards (cut, flipped, removed) reaches what runs.
 * Ownership: views stay valid until kiln_reader_close. Do not write or free them. Threading: find may be called from any thread at
 * once; open and close may not overlap other calls. Fork: safe; no threads, no handlers, no kept descriptors.
 * Errors: a miss is a reason from kiln_miss. A damaged entry is a miss too.
 * Cost: some ten system calls, and a read of the artifact the first time. Never talks to the daemon. */

#include <stddef.h>
#include <stdint.h>

#include "cache/format/artifact.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kiln_reader kiln_reader;

/* Why a key was not found; in logs, `kiln explain` and tests. Append only: 6 is not used again. */
enum kiln_miss {
  KILN_HIT = 0,
  KILN_MISS_NO_CACHE = 1,  /* no directory, no index, or an index of another version */
  KILN_MISS_ABSENT = 2,    /* no such key */
  KILN_MISS_EVICTED = 3,   /* the index names a file that is gone */
  KILN_MISS_CORRUPT = 4,   /* bounds, magic, digest or checksum wrong */
  KILN_MISS_OWNER = 5,     /* directory or file of another user, or writable by others */
  KILN_MISS_UNMAPPABLE = 7 /* no memory, or none that may be executed */
};

typedef struct kiln_view {
  struct kiln_artifact_header header;
  const uint8_t* payload; /* header.payload_size bytes, 64-byte aligned, read only */
  uint32_t generation;    /* of the head that led here; 0 for a lookup by digest */
} kiln_view;

/* Opens `directory`. Never fails for a missing cache: find then misses with KILN_MISS_NO_CACHE. NULL only
 * when out of memory. */
kiln_reader* kiln_reader_open(const char* directory);
void kiln_reader_close(kiln_reader* reader);

/* Finds the artifact a key's head points to; of another kind than `kind` it is absent. `view` is written on a
 * hit only. */
enum kiln_miss kiln_reader_find_key(kiln_reader* reader, const uint8_t key[32], enum kiln_artifact_kind kind,
                                    kiln_view* view);
/* Finds an artifact by its own digest. */
enum kiln_miss kiln_reader_find_digest(kiln_reader* reader, const uint8_t digest[32], enum kiln_artifact_kind kind,
                                       kiln_view* view);
/* Takes in an artifact that came another way than through the files: a copy, found by its digest from then on.
 * `header` needs kind, digest, payload_size and launch data; who calls has checked that they are the payload's. */
enum kiln_miss kiln_reader_adopt(kiln_reader* reader, const struct kiln_artifact_header* header,
                                 const uint8_t* payload);
/* Makes the payload of a code artifact executable and no longer writable; what this reader has not found is absent. W^X
 * holds at every moment. `code` is valid until close. */
enum kiln_miss kiln_reader_map_code(kiln_reader* reader, const kiln_view* view, const uint8_t** code);

const char* kiln_miss_name(enum kiln_miss miss);

#ifdef __cplusplus
}
#endif

#endif /* KILN_CACHE_READER_READER_H */
