// A library with NVRTC's names that does what the test asks for through the macro it is compiled with: FAKE_HANGS never
// answers, FAKE_LACKS has no nvrtcCompileProgram, FAKE_OLD is of version 11, otherwise it fails every source, with a log
// where it may not use its cache.
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int nvrtcVersion(int* major, int* minor) {
#ifdef FAKE_OLD
  *major = 11;
#else
  *major = 13;
#endif
  *minor = 0;
  return 0;
}
EXPORT const char* nvrtcGetErrorString(int result) { return result == 6 ? "NVRTC_ERROR_COMPILATION" : "other"; }
EXPORT int nvrtcCreateProgram(void** program, const char* source, const char* name, int headers,
                              const char* const* texts, const char* const* names) {
  (void)source, (void)name, (void)headers, (void)texts, (void)names;
  *program = program;
  return 0;
}
EXPORT int nvrtcDestroyProgram(void** program) {
  *program = NULL;
  return 0;
}
static int s_has_log;
#ifndef FAKE_LACKS
EXPORT int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  (void)program;
  for (int i = 0; i < count; ++i) s_has_log = s_has_log || strcmp(options[i], "--no-cache") == 0;
#ifdef FAKE_HANGS
  for (;;) pause();
#endif
  return 6;
}
#endif
EXPORT int nvrtcGetCUBINSize(void* program, size_t* bytes) {
  (void)program;
  *bytes = 0;
  return 0;
}
EXPORT int nvrtcGetCUBIN(void* program, char* bytes) {
  (void)program, (void)bytes;
  return 0;
}
static const char k_log[] = "kernel.cu(7): error: expected a semicolon";
EXPORT int nvrtcGetProgramLogSize(void* program, size_t* bytes) {
  (void)program;
  *bytes = s_has_log ? sizeof k_log : 1;
  return 0;
}
EXPORT int nvrtcGetProgramLog(void* program, char* text) {
  (void)program;
  memcpy(text, k_log, s_has_log ? sizeof k_log : 1);
  if (!s_has_log) *text = 0;
  return 0;
}
