#define _GNU_SOURCE
#include "verdict/repeated_mapping.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#define PAGE_BYTES 4096u

int kiln_map_repeatedly(struct kiln_repeated_mapping* out, int fd, uint64_t file_bytes, uint64_t start, uint64_t bytes,
                        bool is_populated) {
  if (file_bytes == 0 || file_bytes % PAGE_BYTES != 0 || start >= file_bytes) return errno = EINVAL, -1;
  uint64_t position = start / PAGE_BYTES * PAGE_BYTES; /* in the file */
  const uint64_t inner = (start - position + bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  out->outer_bytes = inner + 2 * PAGE_BYTES;
  out->outer = mmap(NULL, out->outer_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (out->outer == MAP_FAILED) return out->outer = NULL, -1;
  out->first = out->outer + PAGE_BYTES + start % PAGE_BYTES;
  const int flags = MAP_SHARED | MAP_FIXED | (is_populated ? MAP_POPULATE : 0);
  for (uint64_t done = 0; done < inner;) {
    const uint64_t left = file_bytes - position, part = inner - done < left ? inner - done : left;
    if (mmap(out->outer + PAGE_BYTES + done, part, PROT_READ, flags, fd, (int64_t)position) == MAP_FAILED) {
      kiln_unmap_repeated(out);
      return -1;
    }
    done += part;
    position = 0;
  }
  return 0;
}

void kiln_unmap_repeated(struct kiln_repeated_mapping* mapping) {
  if (mapping->outer) munmap(mapping->outer, mapping->outer_bytes);
  mapping->outer = NULL;
  mapping->first = NULL;
}
