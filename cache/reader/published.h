#ifndef KILN_CACHE_READER_PUBLISHED_H
#define KILN_CACHE_READER_PUBLISHED_H

#include <stddef.h>
#include <stdint.h>

#include "cache/reader/reader.h"

/* The published folder, with total distrust: only regular files that belong to this user or to root, that
 * nobody else can write, and that are reached without following a link below the cache directory. Bytes are
 * read, never mapped: whatever becomes of a file later, what was read stays as it was checked. */

/* Which file a name led to when it was opened: a rename gives it another one. */
struct file_identity {
  uint64_t device;
  uint64_t inode;
  int64_t changed_ns;
};

/* An open file of the folder. */
struct published_file {
  int fd;
  uint64_t size;
  struct file_identity identity;
};

/* Opens the published folder of `directory`; `folder` is to be closed. */
enum kiln_miss kiln_folder_open(const char* directory, int* folder);

/* Opens `name` in the folder for reading; file->fd is to be closed. KILN_MISS_EVICTED when there is no such file. */
enum kiln_miss kiln_published_open(int folder, const char* name, struct published_file* file);

/* Reads exactly [offset, offset + size). KILN_MISS_CORRUPT when the file is shorter or the device fails. */
enum kiln_miss kiln_published_read(const struct published_file* file, void* to, size_t size, uint64_t offset);

/* The name of the index in force; `name` has room for KILN_CURRENT_NAME_BYTES. */
#define KILN_CURRENT_NAME_BYTES 64
enum kiln_miss kiln_published_current(int folder, char* name, struct file_identity* identity);

/* 1 when CURRENT is no longer the file that `identity` describes. */
int kiln_published_moved(int folder, const struct file_identity* identity);

/* Notes in the folder's touch map (cache/format/touch.h), where there is one, that `digest` is in use now: so many
 * minutes after 1970 began. */
void kiln_published_touch(int folder, const uint8_t digest[32], uint32_t minutes);

#endif /* KILN_CACHE_READER_PUBLISHED_H */
