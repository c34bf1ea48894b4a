#define _GNU_SOURCE
#include "cache/reader/index_map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cache/format/checksum.h"

/* A write takes tens of nanoseconds; a slot that stays odd for longer belongs to a writer that died. */
enum { k_torn_reads = 64 };

static int header_valid(const struct kiln_index_header* header, size_t size) {
  return header->magic == KILN_INDEX_MAGIC && header->version == KILN_INDEX_VERSION &&
         header->check == kiln_index_header_check(header) && header->file_capacity <= KILN_INDEX_FILES_MAX &&
         header->capacity > 0 && header->capacity <= KILN_INDEX_CAPACITY_MAX &&
         (header->capacity & (header->capacity - 1)) == 0 &&
         size == kiln_index_size(header->file_capacity, header->capacity);
}

static enum kiln_miss map_index(const char* directory, const char* name, struct mapped_file* file) {
  enum kiln_miss miss = kiln_published_map(directory, name, MAP_SHARED, file);
  if (miss != KILN_HIT) return miss == KILN_MISS_EVICTED ? KILN_MISS_NO_CACHE : miss;
  const struct kiln_index_header* header = (const struct kiln_index_header*)file->base;
  if (file->size >= KILN_PAGE_BYTES && kiln_populate(file->base, KILN_PAGE_BYTES) == KILN_HIT &&
      header_valid(header, file->size)) {
    return KILN_HIT;
  }
  munmap((void*)file->base, file->size);
  return KILN_MISS_NO_CACHE;
}

enum kiln_miss kiln_index_open(const char* directory, struct index_map** out) {
  char name[KILN_CURRENT_NAME_BYTES];
  struct current_identity current;
  enum kiln_miss miss = kiln_published_current(directory, name, &current);
  if (miss == KILN_MISS_CORRUPT) return KILN_MISS_NO_CACHE;
  if (miss != KILN_HIT) return miss;
  struct mapped_file file;
  miss = map_index(directory, name, &file);
  if (miss != KILN_HIT) return miss;

  struct index_map* index = malloc(sizeof *index);
  if (index == NULL) {
    munmap((void*)file.base, file.size);
    return KILN_MISS_UNMAPPABLE;
  }
  index->file = file;
  index->current = current;
  index->header = (const struct kiln_index_header*)file.base;
  index->files = (const struct kiln_index_file*)(file.base + kiln_index_files_offset());
  index->slots = (const struct kiln_index_slot*)(file.base + kiln_index_slots_offset(index->header->file_capacity));
  index->older = NULL;
  *out = index;
  return KILN_HIT;
}

void kiln_index_close(struct index_map* index) {
  munmap((void*)index->file.base, index->file.size);
  free(index);
}

/* The seqlock of index.h. Returns the sequence number, 0 for a slot never used, odd for one that stayed torn.
 */
static uint64_t read_slot(const struct kiln_index_slot* shared, struct kiln_index_slot* slot) {
  const uint64_t* from = (const uint64_t*)shared;
  uint64_t* to = (uint64_t*)slot;
  uint64_t before = 0;
  for (int attempt = 0; attempt < k_torn_reads; ++attempt) {
    before = __atomic_load_n(&from[0], __ATOMIC_ACQUIRE);
    if (before == 0) return 0;
    if (before & 1) continue;
    for (size_t word = 1; word < KILN_SLOT_WORDS; ++word) {
      to[word] = __atomic_load_n(&from[word], __ATOMIC_ACQUIRE);
    }
    if (__atomic_load_n(&from[0], __ATOMIC_RELAXED) == before) return before;
  }
  return before | 1;
}

enum kiln_miss kiln_index_probe(const struct index_map* index, enum kiln_slot_kind kind, const uint8_t key[32],
                                struct kiln_index_slot* slot) {
  const uint64_t mask = index->header->capacity - 1;
  const uint64_t home = kiln_index_home(key);
  for (uint64_t probe = 0; probe < KILN_INDEX_PROBES && probe <= mask; ++probe) {
    const uint64_t sequence = read_slot(&index->slots[(home + probe) & mask], slot);
    if (sequence == 0) return KILN_MISS_ABSENT;
    if ((sequence & 1) || slot->slot_kind != kind || memcmp(slot->key, key, sizeof slot->key) != 0) continue;
    return slot->check == kiln_index_slot_check(slot) ? KILN_HIT : KILN_MISS_CORRUPT;
  }
  return KILN_MISS_ABSENT;
}
