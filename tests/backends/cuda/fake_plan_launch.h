#pragma once

#include <stdint.h>

/* The last launch of a plan that fake_cudnn.c saw, as the test that loaded it reads it. */
struct FakePlanLaunch {
  unsigned launches;
  int64_t numbers[8];
  void* pointers[8];
  void *workspace, *stream;
  float value; /* behind the third pointer */
};
