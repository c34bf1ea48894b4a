// A driver with one device in host memory, whose launches are recorded and otherwise do nothing: it shows that libraries
// are found, functions called in the right order and arguments laid out as kernels read them; never that a kernel is
// right. What needs a context refuses where the calling thread has pushed none. Macros make it fail as a test asks:
// FAKE_STUB is the toolkit's stub, FAKE_EMPTY sees no device, FAKE_LACKS has no cuLaunchKernel, FAKE_AGED is a driver of
// CUDA 12, FAKE_SMALL has a device of capability 7.5, FAKE_MIXED that one and another of 9.0.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/backends/cuda/fake_launch.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT struct FakeLaunch fake_launch;
EXPORT int fake_contexts, fake_modules, fake_allocations, fake_streams, fake_graphs, fake_events;
EXPORT _Thread_local int fake_pushed;  // by each thread

static const int k_invalid_context = 201;
static char s_context, s_module, s_stream, s_graph, s_event;
static void* s_captured;  // the stream, or null
static char s_entry[64];

EXPORT int cuInit(unsigned flags) {
  (void)flags;
#if defined(FAKE_STUB)
  return 34;
#elif defined(FAKE_EMPTY)
  return 100;
#else
  return 0;
#endif
}
EXPORT int cuDriverGetVersion(int* version) {
#ifdef FAKE_AGED
  *version = 12040;
#else
  *version = 13000;
#endif
  return 0;
}
EXPORT int cuGetErrorName(int result, const char** name) {
  *name = result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : result == 200 ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR";
  return 0;
}
EXPORT int cuDeviceGetCount(int* count) {
#ifdef FAKE_MIXED
  *count = 2;
#else
  *count = 1;
#endif
  return 0;
}
EXPORT int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
EXPORT int cuDeviceGetName(char* name, int bytes, int device) {
  (void)device;
  strncpy(name, "fake device", (size_t)bytes);
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  (void)device;
  *bytes = (size_t)1 << 30;
  return 0;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
#if defined(FAKE_SMALL)
  const int is_small = 1;
#elif defined(FAKE_MIXED)
  const int is_small = device == 0;
#else
  const int is_small = 0;
#endif
  (void)device;
  const int major = is_small ? 7 : 9, minor = is_small ? 5 : 0, shared = is_small ? 65536 : 232448;
  *value = attribute == 16   ? 5
           : attribute == 38 ? 7 << 20
           : attribute == 75 ? major
           : attribute == 76 ? minor
           : attribute == 97 ? shared
                             : 0;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  (void)device;
  *context = &s_context;
  ++fake_contexts;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  --fake_contexts;
  return 0;
}
EXPORT int cuCtxPushCurrent_v2(void* context) {
  if (context != &s_context) return k_invalid_context;
  ++fake_pushed;
  return 0;
}
EXPORT int cuCtxPopCurrent_v2(void** context) {
  --fake_pushed;
  *context = &s_context;
  return 0;
}
EXPORT int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
  if (fake_pushed < 1) return k_invalid_context;
  if (bytes > (size_t)1 << 30) return 2;
  *memory = (uint64_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
  ++fake_allocations;
  return 0;
}
EXPORT int cuMemFree_v2(uint64_t memory) {
  if (fake_pushed < 1) return k_invalid_context;
  free((void*)memory);
  --fake_allocations;
  return 0;
}
static int copy(void* to, const void* from, size_t bytes) {
  if (fake_pushed < 1) return k_invalid_context;
  memcpy(to, from, bytes);
  return 0;
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  (void)stream;
  return copy((void*)to, from, bytes);
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  (void)stream;
  return copy(to, (void*)from, bytes);
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  (void)stream;
  return copy((void*)to, (void*)from, bytes);
}
EXPORT int cuStreamCreate(void** stream, unsigned flags) {
  (void)flags;
  if (fake_pushed < 1) return k_invalid_context;
  *stream = &s_stream;
  ++fake_streams;
  return 0;
}
EXPORT int cuStreamDestroy_v2(void* stream) {
  (void)stream;
  if (fake_pushed < 1) return k_invalid_context;
  --fake_streams;
  return 0;
}
EXPORT int cuStreamSynchronize(void* stream) {
  (void)stream;
  return fake_pushed < 1 ? k_invalid_context : 0;
}
EXPORT int cuEventCreate(void** event, unsigned flags) {
  if (fake_pushed < 1 || flags != 0) return k_invalid_context;
  *event = &s_event;
  ++fake_events;
  return 0;
}
EXPORT int cuEventDestroy_v2(void* event) {
  (void)event;
  --fake_events;
  return fake_pushed < 1 ? k_invalid_context : 0;
}
EXPORT int cuEventRecord(void* event, void* stream) {
  (void)event, (void)stream;
  fake_launch.launches_at_event[fake_launch.recorded_events++ % 2] = fake_launch.launches;
  return fake_pushed < 1 ? k_invalid_context : 0;
}
EXPORT int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  (void)begin, (void)end;
  *milliseconds = 0.25f;
  return fake_pushed < 1 ? k_invalid_context : 0;
}
// A graph is how many launches there were while it was captured.
EXPORT int cuStreamBeginCapture_v2(void* stream, int mode) {
  if (fake_pushed < 1) return k_invalid_context;
  if (stream == NULL || s_captured != NULL || mode != 1) return 1;
  s_captured = stream;
  fake_launch.recorded = 0;
  return 0;
}
EXPORT int cuStreamEndCapture(void* stream, void** graph) {
  if (fake_pushed < 1) return k_invalid_context;
  if (stream != s_captured) return 1;
  s_captured = NULL;
  *graph = &s_graph;
  ++fake_graphs;
  return 0;
}
EXPORT int cuStreamIsCapturing(void* stream, int* status) {
  if (fake_pushed < 1) return k_invalid_context;
  *status = stream != NULL && stream == s_captured;
  return 0;
}
EXPORT int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  if (fake_pushed < 1) return k_invalid_context;
  if (graph != &s_graph || flags != 0) return 1;
  *executable = &s_graph;
  ++fake_graphs;
  return 0;
}
EXPORT int cuGraphDestroy(void* graph) {
  (void)graph;
  if (fake_pushed < 1) return k_invalid_context;
  --fake_graphs;
  return 0;
}
EXPORT int cuGraphExecDestroy(void* executable) { return cuGraphDestroy(executable); }
EXPORT int cuGraphLaunch(void* executable, void* stream) {
  if (fake_pushed < 1) return k_invalid_context;
  if (executable != &s_graph || s_captured != NULL) return 1;
  fake_launch.stream = stream;
  ++fake_launch.replays;
  return 0;
}
EXPORT int cuModuleLoadData(void** module, const void* image) {
  if (fake_pushed < 1) return k_invalid_context;
  if (memcmp(image,
             "\x7f"
             "ELF",
             4) != 0)
    return 200;
  *module = &s_module;
  ++fake_modules;
  return 0;
}
EXPORT int cuModuleUnload(void* module) {
  (void)module;
  if (fake_pushed < 1) return k_invalid_context;
  --fake_modules;
  return 0;
}
EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  (void)module;
  strncpy(s_entry, name, sizeof s_entry - 1);
  *function = s_entry;
  return 0;
}
EXPORT int cuFuncSetAttribute(void* function, int attribute, int value) {
  (void)function;
  return attribute == 8 && value <= 232448 ? 0 : 1;
}
#ifndef FAKE_LACKS
EXPORT int cuLaunchKernel(void* function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty,
                          unsigned tz, unsigned shared_bytes, void* stream, void** arguments, void** extra) {
  if (fake_pushed < 1) return k_invalid_context;
  if (y != 1 || z != 1 || ty != 1 || tz != 1 || extra != NULL) return 1;
  if (s_captured != NULL && stream == s_captured) ++fake_launch.recorded;
  fake_launch.blocks = blocks;
  if (fake_launch.launches < 4) fake_launch.blocks_of[fake_launch.launches] = blocks;
  ++fake_launch.launches;
  fake_launch.threads = threads;
  fake_launch.shared_bytes = shared_bytes;
  fake_launch.stream = stream;
  strncpy(fake_launch.entry, function, sizeof fake_launch.entry - 1);
  memcpy(fake_launch.argument, arguments[0], 40);  // pointers, the status and extents: what the tests launch
  return 0;
}
#endif
EXPORT int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* extents,
                                  const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                                  int swizzle, int promotion, int fill) {
  (void)promotion;
  if (rank != 4 || interleave != 0 || fill != 0 || (uint64_t)map % 64 != 0 || (uint64_t)address % 16 != 0) return 1;
  for (int i = 0; i < 3; ++i) {
    if (steps[i] != 1 || box[i] == 0 || box[i] > 256 || extents[i] == 0) return 1;
  }
  if (strides[0] % 16 != 0 || strides[1] % 16 != 0) return 1;
  ++fake_launch.maps;
  fake_launch.map_address = (uint64_t)address;
  memcpy(fake_launch.map_extents, extents, sizeof fake_launch.map_extents);
  memcpy(fake_launch.map_strides, strides, sizeof fake_launch.map_strides);
  memcpy(fake_launch.map_box, box, sizeof fake_launch.map_box);
  fake_launch.map_type = type;
  fake_launch.map_swizzle = swizzle;
  memset(map, 0x5a, 128);
  return 0;
}
