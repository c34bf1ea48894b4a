#define _GNU_SOURCE
#include "cache/reader/index_file.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache/format/checksum.h"

enum {
  k_immediate_reads = 16,
  k_torn_reads = 128, /* 20 ms at least in all: what is torn for longer is damaged */
  k_pause_ns = 200000,
  k_slots_per_read = 8 /* at 0.7 load a probe rarely passes more */
};

static int header_valid(const struct kiln_index_header* header, uint64_t size) {
  return header->magic == KILN_INDEX_MAGIC && header->version == KILN_INDEX_VERSION &&
         header->check == kiln_index_header_check(header) && header->file_capacity <= KILN_INDEX_FILES_MAX &&
         header->capacity > 0 && header->capacity <= KILN_INDEX_CAPACITY_MAX &&
         (header->capacity & (header->capacity - 1)) == 0 &&
         size == kiln_index_size(header->file_capacity, header->capacity);
}

enum kiln_miss kiln_index_load(int folder, struct index_file** out) {
  struct index_file read = {.older = NULL};
  enum kiln_miss miss = kiln_published_current(folder, read.name, &read.current);
  if (miss == KILN_MISS_CORRUPT) return KILN_MISS_NO_CACHE;
  if (miss != KILN_HIT) return miss;
  struct published_file file;
  miss = kiln_published_open(folder, read.name, &file);
  if (miss != KILN_HIT) return miss == KILN_MISS_EVICTED ? KILN_MISS_NO_CACHE : miss;
  struct kiln_index_header header;
  miss = kiln_published_read(&file, &header, sizeof header, 0);
  close(file.fd);
  if (miss != KILN_HIT || !header_valid(&header, file.size)) return KILN_MISS_NO_CACHE;
  read.device = file.identity.device;
  read.inode = file.identity.inode;
  read.file_capacity = header.file_capacity;
  read.capacity = header.capacity;
  struct index_file* index = malloc(sizeof *index);
  if (index == NULL) return KILN_MISS_UNMAPPABLE;
  *index = read;
  *out = index;
  return KILN_HIT;
}

enum kiln_miss kiln_index_open(int folder, const struct index_file* index, struct published_file* file) {
  const enum kiln_miss miss = kiln_published_open(folder, index->name, file);
  if (miss != KILN_HIT) return miss == KILN_MISS_EVICTED ? KILN_MISS_NO_CACHE : miss;
  if (file->identity.device == index->device && file->identity.inode == index->inode) return KILN_HIT;
  close(file->fd);
  return KILN_MISS_NO_CACHE;
}

static enum kiln_miss read_slots(const struct index_file* index, const struct published_file* file, uint64_t first,
                                 size_t count, struct kiln_index_slot* slots) {
  const uint64_t offset = kiln_index_slots_offset(index->file_capacity) + first * sizeof *slots;
  return kiln_published_read(file, slots, count * sizeof *slots, offset);
}

/* A slot that was read while it was written fails its check (index.h), and is read again: at once, then with pauses,
 * since the host may have stopped the writer in the midst of its write. */
static enum kiln_miss settle(const struct index_file* index, const struct published_file* file, uint64_t place,
                             struct kiln_index_slot* slot) {
  for (int attempt = 0; attempt < k_torn_reads; ++attempt) {
    if (slot->slot_kind == KILN_SLOT_EMPTY || slot->check == kiln_index_slot_check(slot)) return KILN_HIT;
    const struct timespec pause = {.tv_nsec = k_pause_ns};
    if (attempt >= k_immediate_reads) nanosleep(&pause, NULL);
    const enum kiln_miss miss = read_slots(index, file, place, 1, slot);
    if (miss != KILN_HIT) return miss;
  }
  return KILN_MISS_CORRUPT;
}

enum kiln_miss kiln_index_probe(const struct index_file* index, const struct published_file* file,
                                enum kiln_slot_kind kind, const uint8_t key[32], struct kiln_index_slot* slot) {
  const uint64_t mask = index->capacity - 1;
  const uint64_t home = kiln_index_home(key);
  struct kiln_index_slot slots[k_slots_per_read];
  size_t count = 0, next = 0;
  for (uint64_t probe = 0; probe < KILN_INDEX_PROBES && probe <= mask; ++probe) {
    const uint64_t place = (home + probe) & mask;
    if (next == count) {
      const uint64_t to_end = index->capacity - place;
      count = to_end < k_slots_per_read ? (size_t)to_end : k_slots_per_read;
      next = 0;
      const enum kiln_miss miss = read_slots(index, file, place, count, slots);
      if (miss != KILN_HIT) return miss;
    }
    *slot = slots[next++];
    if (slot->sequence == 0) return KILN_MISS_ABSENT;
    if (slot->slot_kind != kind || memcmp(slot->key, key, sizeof slot->key) != 0) continue;
    const enum kiln_miss miss = settle(index, file, place, slot);
    if (miss != KILN_HIT) return miss;
    if (slot->slot_kind == kind && memcmp(slot->key, key, sizeof slot->key) == 0) return KILN_HIT;
  }
  return KILN_MISS_ABSENT;
}

enum kiln_miss kiln_index_entry(const struct index_file* index, const struct published_file* file, uint32_t place,
                                struct kiln_index_file* entry) {
  if (place >= index->file_capacity) return KILN_MISS_CORRUPT;
  const enum kiln_miss miss =
      kiln_published_read(file, entry, sizeof *entry, kiln_index_files_offset() + place * sizeof *entry);
  if (miss != KILN_HIT) return miss;
  const int valid = entry->check == kiln_index_file_check(entry) && entry->name[sizeof entry->name - 1] == '\0' &&
                    entry->name[0] != '\0' && entry->name[0] != '.' && strchr(entry->name, '/') == NULL;
  return valid ? KILN_HIT : KILN_MISS_CORRUPT;
}
