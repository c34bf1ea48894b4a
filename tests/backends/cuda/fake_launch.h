#pragma once

#include <stdint.h>

/* The last launch that fake_cuda.c saw, as the test that loaded it reads it; and what the first ones were. */
struct FakeLaunch {
  unsigned blocks, threads, shared_bytes;
  void* stream;
  char entry[64];
  uint8_t argument[4096];
  unsigned maps;
  uint64_t map_address, map_extents[4], map_strides[3];
  uint32_t map_box[4];
  int map_type, map_swizzle;
  unsigned launches, blocks_of[4];
  unsigned recorded, replays; /* launches that were captured last; graphs that were launched */
  unsigned recorded_events, launches_at_event[2];
};
