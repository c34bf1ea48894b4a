#ifndef KILN_VERDICT_REPEATED_MAPPING_H
#define KILN_VERDICT_REPEATED_MAPPING_H

/* A small file mapped again and again behind itself, read-only: a large input that costs address space only. The
 * compile worker and its execution worker map the same one. C, because the executor is. */

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kiln_repeated_mapping {
  uint8_t* first; /* the byte at `start` */
  uint8_t* outer;
  uint64_t outer_bytes;
};

/* `bytes` bytes of `fd`, a file of `file_bytes` (whole pages), from byte `start` on and from 0 again at its end, between
 * unreadable pages; with its pages at once when `is_populated`, for who reads all of it. 0, or -1 with errno. */
int kiln_map_repeatedly(struct kiln_repeated_mapping* out, int fd, uint64_t file_bytes, uint64_t start, uint64_t bytes,
                        bool is_populated);
void kiln_unmap_repeated(struct kiln_repeated_mapping* mapping);

#ifdef __cplusplus
}
#endif

#endif /* KILN_VERDICT_REPEATED_MAPPING_H */
