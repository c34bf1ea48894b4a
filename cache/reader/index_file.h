#ifndef KILN_CACHE_READER_INDEX_FILE_H
#define KILN_CACHE_READER_INDEX_FILE_H

#include "cache/format/index.h"
#include "cache/reader/published.h"

/* One index, by its name; nothing of it stays open. Immutable. */
struct index_file {
  char name[KILN_CURRENT_NAME_BYTES];
  struct file_identity current; /* of CURRENT, when it named this index */
  uint64_t device, inode;       /* of the index: another file under its name is another index */
  uint32_t file_capacity;
  uint64_t capacity;
  struct index_file* older; /* kept until close: another thread may still look into it */
};

/* Reads what CURRENT names. */
enum kiln_miss kiln_index_load(int folder, struct index_file** out);

/* Opens it for probing; `file` is to be closed. KILN_MISS_NO_CACHE when it is gone or another. */
enum kiln_miss kiln_index_open(int folder, const struct index_file* index, struct published_file* file);

/* Copies the slot of `key`. KILN_MISS_ABSENT when there is none, KILN_MISS_CORRUPT when it is damaged. */
enum kiln_miss kiln_index_probe(const struct index_file* index, const struct published_file* file,
                                enum kiln_slot_kind kind, const uint8_t key[32], struct kiln_index_slot* slot);

/* Copies an entry of the file table. */
enum kiln_miss kiln_index_entry(const struct index_file* index, const struct published_file* file, uint32_t place,
                                struct kiln_index_file* entry);

#endif /* KILN_CACHE_READER_INDEX_FILE_H */
