#ifndef KILN_CACHE_READER_INDEX_MAP_H
#define KILN_CACHE_READER_INDEX_MAP_H

#include "cache/format/index.h"
#include "cache/reader/published.h"

/* One mapped index. Immutable but for its slots, which the store writes under the reader's eyes. */
struct index_map {
  struct mapped_file file;
  struct current_identity current;
  const struct kiln_index_header* header;
  const struct kiln_index_file* files;
  const struct kiln_index_slot* slots;
  struct index_map* older; /* kept until close: another thread may still look into it */
};

/* Maps the index that CURRENT names. */
enum kiln_miss kiln_index_open(const char* directory, struct index_map** out);
void kiln_index_close(struct index_map* index);

/* Copies the slot of `key`. KILN_MISS_ABSENT when there is none, KILN_MISS_CORRUPT when it is damaged. */
enum kiln_miss kiln_index_probe(const struct index_map* index, enum kiln_slot_kind kind, const uint8_t key[32],
                                struct kiln_index_slot* slot);

#endif /* KILN_CACHE_READER_INDEX_MAP_H */
