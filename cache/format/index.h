#ifndef KILN_CACHE_FORMAT_INDEX_H
#define KILN_CACHE_FORMAT_INDEX_H

/* The index: a hash table in a file that every client reads. Derived from the store, never truth.
 *
 *   pub/CURRENT  = "index." decimal "\n"        names the index in force; replaced by rename
 *   index        = header padding file{file_capacity} slot{capacity}
 *   header       = 128 bytes, zero padded to one page
 *   file         = 128 bytes; append only; names a file beside the index
 *   slot         = 128 bytes; open addressing from the key's first 8 bytes, next slot on collision
 *
 * All integers little endian. One writer (the store), any number of readers in other processes.
 *
 * A slot is written whole, by one write, so a writer that is stopped or killed leaves the old slot or the new one.
 * `check` covers the content: a reader that finds its key in a slot that fails its check has read in the midst of a
 * write, and reads again; a slot that reached the disk half is damaged, not wrong. `sequence` is 0 while the slot was
 * never used, and grows by two with each write.
 *
 * A probe never passes KILN_INDEX_PROBES slots: the writer grows the index before it would need more (and at
 * 0.7 load), which also bounds what a damaged index can cost a reader.
 *
 * Growth and restart write a new file and rename CURRENT; a reader looks at CURRENT again at a miss only.
 * Bump KILN_INDEX_VERSION if anything here changes. */

#include <stdint.h>

#include "cache/format/artifact.h"

#define KILN_INDEX_MAGIC 0x3158444e494c4e4bull /* "KNLINDX1" */
#define KILN_INDEX_VERSION 1u
#define KILN_INDEX_PROBES 512u
#define KILN_INDEX_CAPACITY_MAX (1ull << 24)
#define KILN_INDEX_FILES_MAX 65536u

#define KILN_PUBLISHED_FOLDER "pub"
#define KILN_CURRENT_FILE "CURRENT"

struct kiln_index_header {
  uint64_t magic;
  uint32_t version;
  uint32_t file_capacity; /* at most KILN_INDEX_FILES_MAX */
  uint64_t generation;    /* the number in its name */
  uint64_t capacity;      /* slots, a power of two */
  uint8_t reserved[88];
  uint64_t check; /* of all the above */
};

struct kiln_index_file {
  uint64_t check;    /* of all below; 0 in an entry never used */
  uint64_t size;     /* in bytes */
  uint64_t identity; /* of the content: another file under a name that was used before has another identity */
  char name[104];    /* no slash, zero padded */
};

enum kiln_slot_kind {
  KILN_SLOT_EMPTY = 0,   /* never used, or removed */
  KILN_SLOT_HEAD = 1,    /* key is a key's digest */
  KILN_SLOT_ARTIFACT = 2 /* key is the artifact's own digest */
};

struct kiln_index_slot {
  uint64_t sequence;
  uint16_t slot_kind;     /* kiln_slot_kind */
  uint16_t artifact_kind; /* kiln_artifact_kind */
  uint32_t generation;    /* of the head; 0 for an artifact */
  uint8_t key[32];
  uint8_t digest[32]; /* of the artifact */
  uint64_t offset;    /* of the artifact's header in the file, in bytes; at any alignment */
  uint64_t length;    /* header, padding and payload */
  uint64_t checksum;  /* the artifact's */
  uint32_t file;      /* place in the file table */
  uint32_t reserved;
  uint64_t unused;
  uint64_t check; /* of all from slot_kind on */
};

#ifdef __cplusplus
#define KILN_STATIC_ASSERT static_assert
#else
#define KILN_STATIC_ASSERT _Static_assert
#endif
KILN_STATIC_ASSERT(sizeof(struct kiln_index_header) == 128, "bump KILN_INDEX_VERSION if this changes");
KILN_STATIC_ASSERT(sizeof(struct kiln_index_file) == 128, "bump KILN_INDEX_VERSION if this changes");
KILN_STATIC_ASSERT(sizeof(struct kiln_index_slot) == 128, "bump KILN_INDEX_VERSION if this changes");

static inline uint64_t kiln_index_files_offset(void) { return KILN_PAGE_BYTES; }
static inline uint64_t kiln_index_slots_offset(uint64_t file_capacity) {
  return kiln_index_files_offset() + file_capacity * sizeof(struct kiln_index_file);
}
static inline uint64_t kiln_index_size(uint64_t file_capacity, uint64_t capacity) {
  return kiln_index_slots_offset(file_capacity) + capacity * sizeof(struct kiln_index_slot);
}
static inline uint64_t kiln_index_home(const uint8_t key[32]) {
  uint64_t home;
  __builtin_memcpy(&home, key, sizeof home);
  return home;
}

#endif /* KILN_CACHE_FORMAT_INDEX_H */
