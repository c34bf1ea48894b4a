#define _GNU_SOURCE
#include "cache/reader/reader.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache/format/checksum.h"
#include "cache/format/index.h"
#include "cache/reader/index_map.h"
#include "cache/reader/published.h"

/* All shared state only grows, by compare-and-swap at the head of a list, and is freed at close. So there is
 * no lock that a fork could leave held, and a lookup never waits. */

enum { k_verified_entries = 4096, k_copy_lists = 256, k_payload_alignment = 64 };

/* An artifact file. The store may give a name again to other content: `identity` tells them apart. */
struct artifact_file {
  struct mapped_file file;
  struct kiln_index_file entry;
  struct artifact_file* older;
};

/* A payload copied out of its file, to align it or to execute it. */
struct payload_copy {
  const uint8_t* source;
  uint8_t* bytes;
  size_t mapped_size;
  int executable;
  struct payload_copy* older;
};

struct kiln_reader {
  char* directory;
  struct index_map* index;
  struct artifact_file* files;
  struct payload_copy* copies[k_copy_lists];
  /* Addresses of artifacts whose checksum was right, in the place their address hashes to. A hint: who is
   * pushed out is checked again. */
  uintptr_t verified[k_verified_entries];
};

static size_t place_of(const void* address, size_t count) {
  return (size_t)(((uintptr_t)address * 0x9e3779b97f4a7c15ull) >> 40) % count;
}

/* ---- open and close */

/* Puts `index` in force unless another thread was faster. */
static struct index_map* install_index(kiln_reader* reader, struct index_map* expected, struct index_map* index) {
  index->older = expected;
  if (__atomic_compare_exchange_n(&reader->index, &expected, index, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    return index;
  }
  kiln_index_close(index);
  return expected;
}

kiln_reader* kiln_reader_open(const char* directory) {
  kiln_reader* reader = calloc(1, sizeof *reader);
  if (reader == NULL) return NULL;
  /* Absolute, so that a later chdir does not lead to another cache. */
  reader->directory = realpath(directory, NULL);
  if (reader->directory == NULL) reader->directory = strdup(directory);
  if (reader->directory == NULL) {
    free(reader);
    return NULL;
  }
  struct index_map* index;
  if (kiln_index_open(reader->directory, &index) == KILN_HIT) install_index(reader, NULL, index);
  return reader;
}

void kiln_reader_close(kiln_reader* reader) {
  if (reader == NULL) return;
  for (struct index_map *index = reader->index, *older; index != NULL; index = older) {
    older = index->older;
    kiln_index_close(index);
  }
  for (struct artifact_file *file = reader->files, *older; file != NULL; file = older) {
    older = file->older;
    munmap((void*)file->file.base, file->file.size);
    free(file);
  }
  for (size_t list = 0; list < k_copy_lists; ++list) {
    for (struct payload_copy *copy = reader->copies[list], *older; copy != NULL; copy = older) {
      older = copy->older;
      munmap(copy->bytes, copy->mapped_size);
      free(copy);
    }
  }
  free(reader->directory);
  free(reader);
}

/* ---- artifact files */

static int file_entry_valid(const struct kiln_index_file* entry) {
  return entry->check == kiln_index_file_check(entry) && entry->name[sizeof entry->name - 1] == '\0' &&
         entry->name[0] != '\0' && entry->name[0] != '.' && strchr(entry->name, '/') == NULL;
}

static const struct artifact_file* known_file(const struct artifact_file* first, const struct kiln_index_file* entry) {
  for (; first != NULL; first = first->older) {
    if (memcmp(&first->entry, entry, sizeof *entry) == 0) return first;
  }
  return NULL;
}

static enum kiln_miss use_file(kiln_reader* reader, const struct index_map* index, uint32_t place,
                               const struct artifact_file** out) {
  if (place >= index->header->file_capacity) return KILN_MISS_CORRUPT;
  const struct kiln_index_file entry = index->files[place];
  struct artifact_file* first = __atomic_load_n(&reader->files, __ATOMIC_ACQUIRE);
  if ((*out = known_file(first, &entry)) != NULL) return KILN_HIT;
  if (!file_entry_valid(&entry)) return KILN_MISS_CORRUPT;

  struct artifact_file* file = malloc(sizeof *file);
  if (file == NULL) return KILN_MISS_UNMAPPABLE;
  file->entry = entry;
  enum kiln_miss miss = kiln_published_map(reader->directory, entry.name, MAP_PRIVATE, &file->file);
  if (miss != KILN_HIT) {
    free(file);
    return miss;
  }
  do {
    if ((*out = known_file(first, &entry)) != NULL || file->file.size != entry.size) {
      munmap((void*)file->file.base, file->file.size);
      free(file);
      return *out != NULL ? KILN_HIT : KILN_MISS_CORRUPT;
    }
    file->older = first;
  } while (!__atomic_compare_exchange_n(&reader->files, &first, file, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  *out = file;
  return KILN_HIT;
}

/* ---- copies */

static uint8_t* copy_pages(const uint8_t* source, size_t size, size_t mapped_size, int protection) {
  uint8_t* bytes = mmap(NULL, mapped_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (bytes == MAP_FAILED) return NULL;
  memcpy(bytes, source, size);
  if (mprotect(bytes, mapped_size, protection) == 0) return bytes;
  munmap(bytes, mapped_size);
  return NULL;
}

/* Some hardened hosts let no anonymous page that was writable become executable, but do let a file's. */
static uint8_t* copy_memfd(const uint8_t* source, size_t size, size_t mapped_size) {
  const int fd = memfd_create("kiln-code", MFD_CLOEXEC);
  if (fd < 0) return NULL;
  uint8_t* bytes = MAP_FAILED;
  if (write(fd, source, size) == (ssize_t)size) {
    bytes = mmap(NULL, mapped_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
  }
  close(fd);
  return bytes == MAP_FAILED ? NULL : bytes;
}

static const struct payload_copy* known_copy(const struct payload_copy* first, const uint8_t* source, int executable) {
  for (; first != NULL; first = first->older) {
    if (first->source == source && first->executable == executable) return first;
  }
  return NULL;
}

/* A page-aligned copy of [source, source + size), one per process. */
static const uint8_t* copy_payload(kiln_reader* reader, const uint8_t* source, size_t size, int executable) {
  struct payload_copy** list = &reader->copies[place_of(source, k_copy_lists)];
  struct payload_copy* first = __atomic_load_n(list, __ATOMIC_ACQUIRE);
  const struct payload_copy* known = known_copy(first, source, executable);
  if (known != NULL) return known->bytes;

  struct payload_copy* copy = malloc(sizeof *copy);
  if (copy == NULL) return NULL;
  copy->source = source;
  copy->executable = executable;
  copy->mapped_size = (size + KILN_PAGE_BYTES) & ~(size_t)(KILN_PAGE_BYTES - 1); /* never 0 */
  copy->bytes = copy_pages(source, size, copy->mapped_size, PROT_READ | (executable ? PROT_EXEC : 0));
  if (copy->bytes == NULL && executable) copy->bytes = copy_memfd(source, size, copy->mapped_size);
  if (copy->bytes == NULL) {
    free(copy);
    return NULL;
  }
  do {
    if ((known = known_copy(first, source, executable)) != NULL) {
      munmap(copy->bytes, copy->mapped_size);
      free(copy);
      return known->bytes;
    }
    copy->older = first;
  } while (!__atomic_compare_exchange_n(list, &first, copy, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  return copy->bytes;
}

/* ---- lookup */

static int header_matches(const struct kiln_artifact_header* header, const struct kiln_index_slot* slot) {
  return header->magic == KILN_ARTIFACT_MAGIC && header->version == KILN_ARTIFACT_VERSION &&
         header->kind == slot->artifact_kind && header->checksum == slot->checksum &&
         memcmp(header->digest, slot->digest, sizeof header->digest) == 0 && header->payload_offset >= sizeof *header &&
         header->payload_offset <= slot->length && header->payload_size == slot->length - header->payload_offset;
}

/* Checks the artifact at `bytes` and copies its header out. The first time, the whole is read and its
 * checksum computed. */
static enum kiln_miss check_artifact(kiln_reader* reader, const uint8_t* bytes, const struct kiln_index_slot* slot,
                                     struct kiln_artifact_header* header) {
  uintptr_t* verified = &reader->verified[place_of(bytes, k_verified_entries)];
  const int known = __atomic_load_n(verified, __ATOMIC_RELAXED) == (uintptr_t)bytes;
  if (!known && kiln_populate(bytes, slot->length) != KILN_HIT) return KILN_MISS_CORRUPT;
  memcpy(header, bytes, sizeof *header);
  if (!header_matches(header, slot)) return KILN_MISS_CORRUPT;
  if (known) return KILN_HIT;
  const uint64_t checksum = kiln_artifact_checksum(header, bytes + header->payload_offset, header->payload_size);
  if (checksum != header->checksum) return KILN_MISS_CORRUPT;
  __atomic_store_n(verified, (uintptr_t)bytes, __ATOMIC_RELAXED);
  return KILN_HIT;
}

static enum kiln_miss view_slot(kiln_reader* reader, const struct index_map* index, const struct kiln_index_slot* slot,
                                kiln_view* view) {
  const struct artifact_file* file;
  enum kiln_miss miss = use_file(reader, index, slot->file, &file);
  if (miss != KILN_HIT) return miss;
  if (slot->length < sizeof view->header || slot->length > file->file.size ||
      slot->offset > file->file.size - slot->length) {
    return KILN_MISS_CORRUPT;
  }
  const uint8_t* bytes = file->file.base + slot->offset;
  kiln_view found = {.generation = slot->generation, .in_place = 1};
  miss = check_artifact(reader, bytes, slot, &found.header);
  if (miss != KILN_HIT) return miss;
  found.payload = bytes + found.header.payload_offset;
  if ((uintptr_t)found.payload % k_payload_alignment != 0) {
    found.payload = copy_payload(reader, found.payload, found.header.payload_size, 0);
    found.in_place = 0;
    if (found.payload == NULL) return KILN_MISS_UNMAPPABLE;
  }
  *view = found;
  return KILN_HIT;
}

/* The store may move an artifact to another file between the look at its slot and the opening of the old
 * file: then the slot says something else by now. */
static enum kiln_miss find_in(kiln_reader* reader, const struct index_map* index, enum kiln_slot_kind slot_kind,
                              const uint8_t key[32], enum kiln_artifact_kind kind, kiln_view* view) {
  struct kiln_index_slot slot, before;
  enum kiln_miss miss = kiln_index_probe(index, slot_kind, key, &slot);
  do {
    if (miss != KILN_HIT) return miss;
    if (slot.artifact_kind != kind) return KILN_MISS_ABSENT;
    miss = view_slot(reader, index, &slot, view);
    if (miss != KILN_MISS_EVICTED) return miss;
    before = slot;
    miss = kiln_index_probe(index, slot_kind, key, &slot);
  } while (slot.file != before.file || slot.offset != before.offset);
  return KILN_MISS_EVICTED;
}

/* At a miss, and only then, asks whether another index is in force, and looks there. */
static enum kiln_miss find(kiln_reader* reader, enum kiln_slot_kind slot_kind, const uint8_t key[32],
                           enum kiln_artifact_kind kind, kiln_view* view) {
  struct index_map* index = __atomic_load_n(&reader->index, __ATOMIC_ACQUIRE);
  enum kiln_miss miss = KILN_MISS_NO_CACHE;
  if (index != NULL) {
    miss = find_in(reader, index, slot_kind, key, kind, view);
    if (miss == KILN_HIT || !kiln_published_moved(reader->directory, &index->current)) return miss;
  }
  struct index_map* newer;
  const enum kiln_miss opened = kiln_index_open(reader->directory, &newer);
  if (opened != KILN_HIT) return index != NULL ? miss : opened;
  newer = install_index(reader, index, newer);
  return find_in(reader, newer, slot_kind, key, kind, view);
}

enum kiln_miss kiln_reader_find_key(kiln_reader* reader, const uint8_t key[32], enum kiln_artifact_kind kind,
                                    kiln_view* view) {
  return find(reader, KILN_SLOT_HEAD, key, kind, view);
}

enum kiln_miss kiln_reader_find_digest(kiln_reader* reader, const uint8_t digest[32], enum kiln_artifact_kind kind,
                                       kiln_view* view) {
  return find(reader, KILN_SLOT_ARTIFACT, digest, kind, view);
}

enum kiln_miss kiln_reader_map_code(kiln_reader* reader, const kiln_view* view, const uint8_t** code) {
  const size_t size = view->header.payload_size;
  if (view->header.kind != KILN_ARTIFACT_CODE || size == 0) return KILN_MISS_CORRUPT;
  /* The file is mapped private and read-only already: adding execute to the code's own pages needs no second
   * mapping, and works after the file was evicted. A noexec mount refuses. */
  if (view->in_place && (uintptr_t)view->payload % KILN_PAGE_BYTES == 0 &&
      mprotect((void*)view->payload, size, PROT_READ | PROT_EXEC) == 0) {
    *code = view->payload;
    return KILN_HIT;
  }
  *code = copy_payload(reader, view->payload, size, 1);
  return *code != NULL ? KILN_HIT : KILN_MISS_UNMAPPABLE;
}

const char* kiln_miss_name(enum kiln_miss miss) {
  switch (miss) {
    case KILN_HIT:
      return "hit";
    case KILN_MISS_NO_CACHE:
      return "no_cache";
    case KILN_MISS_ABSENT:
      return "absent";
    case KILN_MISS_EVICTED:
      return "evicted";
    case KILN_MISS_CORRUPT:
      return "corrupt";
    case KILN_MISS_OWNER:
      return "owner";
    case KILN_MISS_FEATURES:
      return "features";
    case KILN_MISS_UNMAPPABLE:
      return "unmappable";
  }
  return "unknown";
}
