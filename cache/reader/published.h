#ifndef KILN_CACHE_READER_PUBLISHED_H
#define KILN_CACHE_READER_PUBLISHED_H

#include <stddef.h>
#include <stdint.h>

#include "cache/reader/reader.h"

/* The published folder, with total distrust: only regular files that belong to this user or to root, that
 * nobody else can write, and that are reached without following a link below the cache directory. */

/* A file mapped read-only. Lives until the reader closes, so that views into it do. */
struct mapped_file {
  const uint8_t* base;
  size_t size;
};

/* Which file CURRENT was when it was read: a rename gives it another one. */
struct current_identity {
  uint64_t device;
  uint64_t inode;
  int64_t changed_ns;
};

/* `sharing` is MAP_PRIVATE, or MAP_SHARED for the index, the one file that changes while it is mapped.
 * KILN_MISS_EVICTED when there is no such file. */
enum kiln_miss kiln_published_map(const char* directory, const char* name, int sharing, struct mapped_file* file);

/* The name of the index in force; `name` has room for KILN_CURRENT_NAME_BYTES. */
#define KILN_CURRENT_NAME_BYTES 64
enum kiln_miss kiln_published_current(const char* directory, char* name, struct current_identity* identity);

/* 1 when CURRENT is no longer the file that `identity` describes. */
int kiln_published_moved(const char* directory, const struct current_identity* identity);

/* Brings [first, first + size) into memory with one read of that size. KILN_MISS_CORRUPT when the file is
 * shorter than it was or the device fails: reading it would be SIGBUS. */
enum kiln_miss kiln_populate(const uint8_t* first, size_t size);

#endif /* KILN_CACHE_READER_PUBLISHED_H */
