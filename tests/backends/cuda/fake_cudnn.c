// A cuDNN whose plans are recorded when they are launched and otherwise do nothing. It takes a plan whose text names driver
// 13000, which is what fake_cuda.c says it is, and device 900.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/backends/cuda/fake_plan_launch.h"

#define EXPORT __attribute__((visibility("default")))

enum { k_plan = 5, k_arch_mismatch = 3007, k_text = 405, k_numbers = 1000, k_pointers = 1001, k_workspace = 1003 };

EXPORT struct FakePlanLaunch fake_plan_launch;
EXPORT int fake_handles, fake_descriptors;

struct Descriptor {
  int kind;
  char text[256];
  struct FakePlanLaunch launch;
};

static void* s_stream;

EXPORT size_t cudnnGetVersion(void) { return 91900; }
EXPORT const char* cudnnGetErrorString(int status) {
  return status == k_arch_mismatch ? "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH" : "CUDNN_STATUS";
}
EXPORT void cudnnGetLastErrorString(char* message, size_t bytes) { strncpy(message, "a fake's reason", bytes); }
EXPORT int cudnnCreate(void** handle) {
  *handle = &s_stream;
  ++fake_handles;
  return 0;
}
EXPORT int cudnnDestroy(void* handle) {
  (void)handle;
  --fake_handles;
  return 0;
}
EXPORT int cudnnSetStream(void* handle, void* stream) {
  (void)handle;
  s_stream = stream;
  return 0;
}
EXPORT int cudnnBackendCreateDescriptor(int kind, void** descriptor) {
  struct Descriptor* made = calloc(1, sizeof *made);
  made->kind = kind;
  *descriptor = made;
  ++fake_descriptors;
  return 0;
}
EXPORT int cudnnBackendDestroyDescriptor(void* descriptor) {
  free(descriptor);
  --fake_descriptors;
  return 0;
}
EXPORT int cudnnBackendFinalize(void* descriptor) {
  const struct Descriptor* made = descriptor;
  if (made->kind != k_plan) return 0;
  const int is_taken =
      strstr(made->text, "\"driverVer\":13000") != NULL && strstr(made->text, "\"deviceVer\":900") != NULL;
  return is_taken ? 0 : k_arch_mismatch;
}
EXPORT int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, int64_t count, const void* values) {
  struct Descriptor* made = descriptor;
  (void)type;
  if (attribute == k_text) memcpy(made->text, values, (size_t)count);
  if (attribute == k_numbers) memcpy(made->launch.numbers, values, (size_t)count * sizeof(int64_t));
  if (attribute == k_pointers) memcpy(made->launch.pointers, values, (size_t)count * sizeof(void*));
  if (attribute == k_workspace) memcpy(&made->launch.workspace, values, sizeof(void*));
  return 0;
}
EXPORT int cudnnBackendGetAttribute(void* descriptor, int attribute, int type, int64_t count, int64_t* got,
                                    void* values) {
  (void)descriptor, (void)attribute, (void)type, (void)count, (void)got, (void)values;
  return 0;
}
EXPORT int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  if (handle != &s_stream || ((struct Descriptor*)plan)->kind != k_plan) return 2000;
  const unsigned launches = fake_plan_launch.launches;
  fake_plan_launch = ((struct Descriptor*)pack)->launch;
  fake_plan_launch.launches = launches + 1;
  fake_plan_launch.stream = s_stream;
  memcpy(&fake_plan_launch.value, fake_plan_launch.pointers[2], sizeof(float));
  return 0;
}
