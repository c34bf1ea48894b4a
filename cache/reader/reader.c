#define _GNU_SOURCE
#include "cache/reader/reader.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cache/format/checksum.h"
#include "cache/format/index.h"
#include "cache/reader/index_file.h"
#include "cache/reader/published.h"

/* All shared state only grows, by compare-and-swap at the head of a list, and is freed at close. So there is
 * no lock that a fork could leave held, and a lookup never waits. */

enum { k_copy_lists = 256, k_payload_alignment = 64, k_touch_interval_minutes = 60 };

/* An artifact in this process's own memory, where it was checked: the files it came from may be cut, flipped or
 * removed from then on. Code has whole pages, so that they can be made executable. */
struct artifact_copy {
  struct kiln_artifact_header header;
  uint8_t* payload;
  const uint8_t* code; /* executable; NULL until somebody wants it */
  uint32_t touched;    /* when its use was noted last, in minutes since 1970 */
  struct artifact_copy* older;
};

struct kiln_reader {
  char* directory;
  struct index_file* index;
  struct artifact_copy* copies[k_copy_lists]; /* by digest */
};

/* ---- open and close */

/* Puts `index` in force unless another thread was faster. */
static struct index_file* install_index(kiln_reader* reader, struct index_file* expected, struct index_file* index) {
  index->older = expected;
  if (__atomic_compare_exchange_n(&reader->index, &expected, index, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    return index;
  }
  free(index);
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
  return reader;
}

static size_t whole_pages(size_t size) {
  return (size + KILN_PAGE_BYTES) & ~(size_t)(KILN_PAGE_BYTES - 1); /* never 0 */
}

static int is_code(const struct artifact_copy* copy) { return copy->header.kind == KILN_ARTIFACT_CODE; }

static void free_copy(struct artifact_copy* copy) {
  const size_t size = whole_pages(copy->header.payload_size);
  if (copy->code != NULL && copy->code != copy->payload) munmap((void*)copy->code, size);
  if (is_code(copy)) {
    munmap(copy->payload, size);
  } else {
    free(copy->payload);
  }
  free(copy);
}

void kiln_reader_close(kiln_reader* reader) {
  if (reader == NULL) return;
  for (struct index_file *index = reader->index, *older; index != NULL; index = older) {
    older = index->older;
    free(index);
  }
  for (size_t list = 0; list < k_copy_lists; ++list) {
    for (struct artifact_copy *copy = reader->copies[list], *older; copy != NULL; copy = older) {
      older = copy->older;
      free_copy(copy);
    }
  }
  free(reader->directory);
  free(reader);
}

/* ---- copies */

static struct artifact_copy** list_of(kiln_reader* reader, const uint8_t digest[32]) {
  return &reader->copies[digest[0] % k_copy_lists];
}

static struct artifact_copy* known_copy(struct artifact_copy* first, const uint8_t digest[32]) {
  for (; first != NULL; first = first->older) {
    if (memcmp(first->header.digest, digest, sizeof first->header.digest) == 0) return first;
  }
  return NULL;
}

static uint8_t* allocate_payload(const struct kiln_artifact_header* header) {
  if (header->kind == KILN_ARTIFACT_CODE) {
    void* pages = mmap(NULL, whole_pages(header->payload_size), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
  }
  void* bytes;
  const size_t size = header->payload_size == 0 ? 1 : header->payload_size;
  return posix_memalign(&bytes, k_payload_alignment, size) == 0 ? bytes : NULL;
}

static int header_matches(const struct kiln_artifact_header* header, const struct kiln_index_slot* slot) {
  return header->magic == KILN_ARTIFACT_MAGIC && header->version == KILN_ARTIFACT_VERSION &&
         header->kind == slot->artifact_kind && header->checksum == slot->checksum &&
         memcmp(header->digest, slot->digest, sizeof header->digest) == 0 && header->payload_offset >= sizeof *header &&
         header->payload_offset <= slot->length && header->payload_size == slot->length - header->payload_offset;
}

/* Reads the artifact at the slot's place, and checks what was read. */
static enum kiln_miss read_artifact(const struct published_file* file, const struct kiln_index_slot* slot,
                                    struct artifact_copy* copy) {
  struct kiln_artifact_header* header = &copy->header;
  if (slot->length < sizeof *header || slot->length > file->size || slot->offset > file->size - slot->length) {
    return KILN_MISS_CORRUPT;
  }
  enum kiln_miss miss = kiln_published_read(file, header, sizeof *header, slot->offset);
  if (miss != KILN_HIT) return miss;
  if (!header_matches(header, slot)) return KILN_MISS_CORRUPT;
  copy->payload = allocate_payload(header);
  if (copy->payload == NULL) return KILN_MISS_UNMAPPABLE;
  miss = kiln_published_read(file, copy->payload, header->payload_size, slot->offset + header->payload_offset);
  if (miss != KILN_HIT) return miss;
  const uint64_t checksum = kiln_artifact_checksum(header, copy->payload, header->payload_size);
  return checksum == header->checksum ? KILN_HIT : KILN_MISS_CORRUPT;
}

static enum kiln_miss make_copy(const struct published_file* file, const struct kiln_index_slot* slot,
                                struct artifact_copy** out) {
  struct artifact_copy* copy = calloc(1, sizeof *copy);
  if (copy == NULL) return KILN_MISS_UNMAPPABLE;
  const enum kiln_miss miss = read_artifact(file, slot, copy);
  if (miss == KILN_HIT) {
    *out = copy;
  } else if (copy->payload != NULL) {
    free_copy(copy);
  } else {
    free(copy);
  }
  return miss;
}

/* Keeps `copy` unless another thread was faster. */
static struct artifact_copy* keep_copy(kiln_reader* reader, struct artifact_copy* copy) {
  struct artifact_copy** list = list_of(reader, copy->header.digest);
  struct artifact_copy* first = __atomic_load_n(list, __ATOMIC_ACQUIRE);
  do {
    struct artifact_copy* known = known_copy(first, copy->header.digest);
    if (known != NULL) {
      free_copy(copy);
      return known;
    }
    copy->older = first;
  } while (!__atomic_compare_exchange_n(list, &first, copy, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  return copy;
}

/* ---- lookup */

/* Notes that the artifact is in use, unless that was done within the last hour. `folder` -1: nobody has it open. */
static void touch(kiln_reader* reader, int folder, struct artifact_copy* copy) {
  const uint32_t now = (uint32_t)(time(NULL) / 60);
  const uint32_t before = __atomic_load_n(&copy->touched, __ATOMIC_RELAXED);
  if (now - before < k_touch_interval_minutes) return;
  __atomic_store_n(&copy->touched, now, __ATOMIC_RELAXED);
  int opened = -1;
  if (folder < 0 && kiln_folder_open(reader->directory, &opened) != KILN_HIT) return;
  kiln_published_touch(folder < 0 ? opened : folder, copy->header.digest, now);
  if (opened >= 0) close(opened);
}

/* An index that is open for one lookup. */
struct lookup {
  int folder;
  const struct index_file* index;
  struct published_file file;
};

static enum kiln_miss view_slot(kiln_reader* reader, const struct lookup* lookup, const struct kiln_index_slot* slot,
                                kiln_view* view) {
  struct artifact_copy* copy =
      known_copy(__atomic_load_n(list_of(reader, slot->digest), __ATOMIC_ACQUIRE), slot->digest);
  if (copy == NULL) {
    struct kiln_index_file entry;
    enum kiln_miss miss = kiln_index_entry(lookup->index, &lookup->file, slot->file, &entry);
    if (miss != KILN_HIT) return miss;
    struct published_file file;
    miss = kiln_published_open(lookup->folder, entry.name, &file);
    if (miss != KILN_HIT) return miss;
    miss = file.size == entry.size ? make_copy(&file, slot, &copy) : KILN_MISS_CORRUPT;
    close(file.fd);
    if (miss != KILN_HIT) return miss;
    copy = keep_copy(reader, copy);
  }
  touch(reader, lookup->folder, copy);
  view->header = copy->header;
  view->payload = copy->payload;
  view->generation = slot->generation;
  return KILN_HIT;
}

/* The store may move an artifact to another file between the look at its slot and the opening of the old
 * file: then the slot says something else by now. */
static enum kiln_miss find_open(kiln_reader* reader, const struct lookup* lookup, enum kiln_slot_kind slot_kind,
                                const uint8_t key[32], enum kiln_artifact_kind kind, kiln_view* view) {
  struct kiln_index_slot slot, before;
  enum kiln_miss miss = kiln_index_probe(lookup->index, &lookup->file, slot_kind, key, &slot);
  do {
    if (miss != KILN_HIT) return miss;
    if (slot.artifact_kind != kind) return KILN_MISS_ABSENT;
    miss = view_slot(reader, lookup, &slot, view);
    if (miss != KILN_MISS_EVICTED) return miss;
    before = slot;
    miss = kiln_index_probe(lookup->index, &lookup->file, slot_kind, key, &slot);
  } while (slot.file != before.file || slot.offset != before.offset);
  return KILN_MISS_EVICTED;
}

static enum kiln_miss find_in(kiln_reader* reader, int folder, const struct index_file* index,
                              enum kiln_slot_kind slot_kind, const uint8_t key[32], enum kiln_artifact_kind kind,
                              kiln_view* view) {
  struct lookup lookup = {.folder = folder, .index = index};
  enum kiln_miss miss = kiln_index_open(folder, index, &lookup.file);
  if (miss != KILN_HIT) return miss;
  miss = find_open(reader, &lookup, slot_kind, key, kind, view);
  close(lookup.file.fd);
  return miss;
}

/* At a miss, and only then, asks whether another index is in force, and looks there. */
static enum kiln_miss find(kiln_reader* reader, int folder, enum kiln_slot_kind slot_kind, const uint8_t key[32],
                           enum kiln_artifact_kind kind, kiln_view* view) {
  struct index_file* index = __atomic_load_n(&reader->index, __ATOMIC_ACQUIRE);
  enum kiln_miss miss = KILN_MISS_NO_CACHE;
  if (index != NULL) {
    miss = find_in(reader, folder, index, slot_kind, key, kind, view);
    if (miss == KILN_HIT) return miss;
    /* An index that is gone, or another under its name, is looked for anew even where CURRENT stayed. */
    if (miss != KILN_MISS_NO_CACHE && !kiln_published_moved(folder, &index->current)) return miss;
  }
  struct index_file* newer;
  const enum kiln_miss loaded = kiln_index_load(folder, &newer);
  if (loaded != KILN_HIT) return index != NULL ? miss : loaded;
  newer = install_index(reader, index, newer);
  return find_in(reader, folder, newer, slot_kind, key, kind, view);
}

static enum kiln_miss find_anywhere(kiln_reader* reader, enum kiln_slot_kind slot_kind, const uint8_t key[32],
                                    enum kiln_artifact_kind kind, kiln_view* view) {
  int folder;
  enum kiln_miss miss = kiln_folder_open(reader->directory, &folder);
  if (miss != KILN_HIT) return miss;
  miss = find(reader, folder, slot_kind, key, kind, view);
  close(folder);
  return miss;
}

enum kiln_miss kiln_reader_find_key(kiln_reader* reader, const uint8_t key[32], enum kiln_artifact_kind kind,
                                    kiln_view* view) {
  return find_anywhere(reader, KILN_SLOT_HEAD, key, kind, view);
}

enum kiln_miss kiln_reader_find_digest(kiln_reader* reader, const uint8_t digest[32], enum kiln_artifact_kind kind,
                                       kiln_view* view) {
  struct artifact_copy* copy = known_copy(__atomic_load_n(list_of(reader, digest), __ATOMIC_ACQUIRE), digest);
  if (copy == NULL) return find_anywhere(reader, KILN_SLOT_ARTIFACT, digest, kind, view);
  if (copy->header.kind != kind) return KILN_MISS_ABSENT;
  touch(reader, -1, copy);
  *view = (kiln_view){.header = copy->header, .payload = copy->payload};
  return KILN_HIT;
}

enum kiln_miss kiln_reader_adopt(kiln_reader* reader, const struct kiln_artifact_header* header,
                                 const uint8_t* payload) {
  struct artifact_copy* copy = calloc(1, sizeof *copy);
  if (copy == NULL) return KILN_MISS_UNMAPPABLE;
  copy->header = *header;
  copy->payload = allocate_payload(header);
  if (copy->payload == NULL) {
    free(copy);
    return KILN_MISS_UNMAPPABLE;
  }
  if (header->payload_size > 0) memcpy(copy->payload, payload, header->payload_size);
  keep_copy(reader, copy);
  return KILN_HIT;
}

/* ---- code */

/* Some hardened hosts let no anonymous page that was writable become executable, but do let a file's. */
static const uint8_t* copy_to_memfd(const uint8_t* source, size_t size) {
  const int fd = memfd_create("kiln-code", MFD_CLOEXEC);
  if (fd < 0) return NULL;
  void* bytes = MAP_FAILED;
  if (write(fd, source, size) == (ssize_t)size) {
    bytes = mmap(NULL, whole_pages(size), PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
  }
  close(fd);
  return bytes == MAP_FAILED ? NULL : bytes;
}

enum kiln_miss kiln_reader_map_code(kiln_reader* reader, const kiln_view* view, const uint8_t** code) {
  const size_t size = view->header.payload_size;
  if (view->header.kind != KILN_ARTIFACT_CODE || size == 0) return KILN_MISS_CORRUPT;
  struct artifact_copy* copy =
      known_copy(__atomic_load_n(list_of(reader, view->header.digest), __ATOMIC_ACQUIRE), view->header.digest);
  if (copy == NULL) return KILN_MISS_ABSENT;
  *code = __atomic_load_n(&copy->code, __ATOMIC_ACQUIRE);
  if (*code != NULL) return KILN_HIT;
  const int in_place = mprotect(copy->payload, whole_pages(size), PROT_READ | PROT_EXEC) == 0;
  const uint8_t* executable = in_place ? copy->payload : copy_to_memfd(copy->payload, size);
  if (executable == NULL) return KILN_MISS_UNMAPPABLE;
  if (__atomic_compare_exchange_n(&copy->code, code, executable, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    *code = executable;
  } else if (!in_place) {
    munmap((void*)executable, whole_pages(size)); /* another thread was faster */
  }
  return KILN_HIT;
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
    case KILN_MISS_UNMAPPABLE:
      return "unmappable";
  }
  return "unknown";
}
