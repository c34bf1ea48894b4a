#ifndef KILN_CACHE_FORMAT_TOUCH_H
#define KILN_CACHE_FORMAT_TOUCH_H

/* The touch map: when artifacts were last in use. Derived, and only a hint for eviction.
 *
 *   pub/touch = cell{KILN_TOUCH_CELLS}
 *   cell      = minutes:u32        since 1970; 0 is never
 *
 * A client writes the cell of an artifact's digest when it first reads the artifact, and when it looks it up an hour or
 * more later; the store reads it when it chooses what to keep. Artifacts may share a cell: then the one counts as used when the other is. */

#include <stdint.h>

#define KILN_TOUCH_FILE "touch"
#define KILN_TOUCH_CELLS 65536u
#define KILN_TOUCH_BYTES (KILN_TOUCH_CELLS * 4u)

/* Where the cell of `digest` begins in the file. */
static inline uint64_t kiln_touch_offset(const uint8_t digest[32]) {
  uint64_t home;
  __builtin_memcpy(&home, digest, sizeof home);
  return home % KILN_TOUCH_CELLS * 4;
}

#endif /* KILN_CACHE_FORMAT_TOUCH_H */
