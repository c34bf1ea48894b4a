// libcuda.so.1 with the emulated machine as its one device, of capability 9.0. Kernels are what nvrtc.cc makes.
//
// It is stricter than hardware where that finds mistakes: nothing that was put on a stream happens before somebody waits for
// it, fresh memory is poison, every pointer a kernel follows must lie in memory of the device, what the machine finds wrong
// loses the device, and functions that need a context refuse a thread that has pushed none.
#include <elf.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/fd.h"
#include "tests/stand_ins/cuda/host_module.h"
#include "tests/stand_ins/cuda/machine.h"
#include "tests/stand_ins/cuda/tensor_map.h"

#define KILN_EXPORT extern "C" __attribute__((visibility("default")))

namespace kiln::cuda_emulator {
namespace {

// CUresult.
enum Result : int {
  k_success = 0,
  k_invalid_value = 1,
  k_out_of_memory = 2,
  k_invalid_image = 200,
  k_invalid_context = 201,
  k_operating_system = 304,
  k_not_found = 500,
  k_not_ready = 600,
  k_launch_out_of_resources = 701,
  k_launch_failed = 719,
  k_capture_unsupported = 900,
  k_capture_invalidated = 901,
};

constexpr size_t k_memory_bytes = size_t{1} << 30;
constexpr int k_multiprocessors = 3, k_shared_bytes = 232448;
constexpr uint32_t k_shared_without_asking = 48 << 10;
constexpr uint8_t k_fresh_memory = 0xFF;  // NaN in every floating type

struct Function {
  std::shared_ptr<const HostModule> module;
  uint32_t most_shared_bytes = k_shared_without_asking;
};
struct LoadedModule {
  Function function;
};
struct Command {
  const void* stream;
  std::function<std::string()> run;
};
/// Launches and copies in the order in which they were put on a stream.
struct Graph {
  std::vector<std::function<std::string()>> commands;
  bool is_invalid = false;
};

std::recursive_mutex s_mutex;
std::map<uintptr_t, size_t> s_memory;     // address, bytes
std::deque<Command> s_pending;            // of all streams, in the order in which they were put there
std::map<const void*, Graph> s_captures;  // by the stream that is captured
uint64_t s_launches = 0;
bool s_is_lost = false;
char s_context;
thread_local int t_pushed = 0;

/// The allocation that holds the bytes; s_memory.end() where none does.
auto holder_of(uintptr_t address, size_t bytes) {
  auto after = s_memory.upper_bound(address);
  if (after == s_memory.begin()) return s_memory.end();
  const auto holder = std::prev(after);
  return address + bytes <= holder->first + holder->second ? holder : s_memory.end();
}

/// With STAND_IN_SYSTEM_MEMORY all of the host's memory is the device's, too, as where both share it. It is not watched, and
/// what is put on the default stream is done at once, as nobody waits for that who reads the memory on the host.
bool has_system_memory() {
  static const bool has = std::getenv("STAND_IN_SYSTEM_MEMORY") != nullptr;
  return has;
}

/// Of the device: STAND_IN_MEMORY_BYTES where somebody else has the rest.
size_t memory_bytes() {
  const char* given = std::getenv("STAND_IN_MEMORY_BYTES");
  return given == nullptr ? k_memory_bytes : std::strtoull(given, nullptr, 10);
}

bool is_device_memory(const void* pointer, size_t bytes) {
  if (has_system_memory()) return true;
  return holder_of(reinterpret_cast<uintptr_t>(pointer), bytes) != s_memory.end();
}

/// What may be called: with a context, on a device that is not lost.
int ready() { return t_pushed < 1 ? k_invalid_context : s_is_lost ? k_launch_failed : k_success; }

/// What cannot be captured, while anything is: as the driver in its strictest mode, it also spoils what was captured.
int ready_uncaptured() {
  for (auto& [stream, graph] : s_captures) graph.is_invalid = true;
  return s_captures.empty() ? ready() : k_capture_unsupported;
}

/// Does what is pending: of one stream, or of all.
int finish(const void* stream, bool is_all) {
  const std::lock_guard lock(s_mutex);
  for (auto command = s_pending.begin(); command != s_pending.end();) {
    if (!is_all && command->stream != stream) {
      ++command;
      continue;
    }
    const std::string problem = s_is_lost ? "" : command->run();
    command = s_pending.erase(command);
    if (problem.empty()) continue;
    std::fprintf(stderr, "cuda stand-in: %s\n", problem.c_str());
    s_is_lost = true;
  }
  return s_is_lost ? k_launch_failed : k_success;
}

int put(const void* stream, std::function<std::string()> run) {
  const std::lock_guard lock(s_mutex);
  if (const int refused = ready(); refused != k_success) return refused;
  if (const auto captured = s_captures.find(stream); captured != s_captures.end()) {
    captured->second.commands.push_back(std::move(run));
    return k_success;
  }
  s_pending.push_back({stream, std::move(run)});
  return stream == nullptr && has_system_memory() ? finish(stream, false) : k_success;
}

/// The memory that an argument's words point into, and all that the kernel may use: whole allocations.
std::vector<GlobalBuffer> buffers_of(const std::vector<uint64_t>& argument) {
  std::set<uintptr_t> found;
  for (const uint64_t word : argument) {
    if (const auto holder = holder_of(word, 1); holder != s_memory.end()) found.insert(holder->first);
  }
  std::vector<GlobalBuffer> buffers;
  for (const uintptr_t first : found) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses are numbers in this API
    buffers.push_back({"memory", reinterpret_cast<uint8_t*>(first), s_memory.at(first)});
  }
  if (has_system_memory())
    buffers.push_back({.name = "the host's memory", .size_bytes = SIZE_MAX, .is_watched = false});
  return buffers;
}

int copy(const void* stream, void* to, const void* from, size_t bytes) {
  return put(stream, [=]() -> std::string {
    std::memcpy(to, from, bytes);
    return {};
  });
}

/// Bytes of a shared object: its sections' table is last.
size_t size_of_object(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_shoff == 0) return 0;
  return header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
}

void* pointer_of(uint64_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

}  // namespace
}  // namespace kiln::cuda_emulator

using namespace kiln::cuda_emulator;

// NOLINTBEGIN(readability-identifier-naming): the vendor's names

// The driver and its device.

/// Needs of the system what the vendor's driver 580 needs: it listens on a socket of this host from its start on, and makes
/// sure that a name is free.
KILN_EXPORT int cuInit(unsigned) {
  const kiln::UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // without a name the kernel chooses one
  const bool listens =
      listener && bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address.sun_family) == 0 &&
      listen(listener.get(), 1) == 0;
  const bool is_free = unlink("/nonexistent") == 0 || errno == ENOENT;
  return listens && is_free ? k_success : k_operating_system;
}
KILN_EXPORT int cuDriverGetVersion(int* version) {
  *version = 13000;
  return k_success;
}
KILN_EXPORT int cuGetErrorName(int result, const char** name) {
  *name = result == k_launch_failed   ? "CUDA_ERROR_LAUNCH_FAILED"
          : result == k_out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY"
                                      : "CUDA_ERROR";
  return k_success;
}
KILN_EXPORT int cuDeviceGetCount(int* count) {
  *count = 1;
  return k_success;
}
KILN_EXPORT int cuDeviceGet(int* device, int index) {
  *device = index;
  return k_success;
}
KILN_EXPORT int cuDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "emulated sm_90a", static_cast<size_t>(bytes));
  return k_success;
}
KILN_EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = k_memory_bytes;
  return k_success;
}
KILN_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  static const std::map<int, int> k_values = {
      {16, k_multiprocessors}, {38, 50 << 20}, {75, 9}, {76, 0}, {97, k_shared_bytes}};
  const auto found = k_values.find(attribute);
  if (found == k_values.end()) return k_invalid_value;
  *value = found->second;
  return k_success;
}
KILN_EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &s_context;
  return k_success;
}
KILN_EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return k_success; }
KILN_EXPORT int cuCtxPushCurrent_v2(void* context) {
  if (context != &s_context) return k_invalid_context;
  ++t_pushed;
  return k_success;
}
KILN_EXPORT int cuCtxPopCurrent_v2(void** context) {
  --t_pushed;
  *context = &s_context;
  return k_success;
}
KILN_EXPORT int cuCtxGetCurrent(void** context) {
  *context = t_pushed < 1 ? nullptr : &s_context;
  return k_success;
}

// Memory.

KILN_EXPORT int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  const std::lock_guard lock(s_mutex);
  if (const int refused = ready_uncaptured(); refused != k_success) return refused;
  if (bytes == 0) return k_invalid_value;
  size_t used = bytes;
  for (const auto& [held, size] : s_memory) used += size;
  if (used > memory_bytes()) return k_out_of_memory;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return k_out_of_memory;
  std::memset(memory, k_fresh_memory, bytes);
  *address = reinterpret_cast<uint64_t>(memory);
  s_memory.emplace(*address, bytes);
  return k_success;
}
KILN_EXPORT int cuMemFree_v2(uint64_t address) {
  const std::lock_guard lock(s_mutex);
  if (t_pushed < 1) return k_invalid_context;
  finish(nullptr, true);  // as the driver does
  if (s_memory.erase(address) == 0) return k_invalid_value;
  std::free(pointer_of(address));
  return k_success;
}
KILN_EXPORT int cuMemGetAddressRange_v2(uint64_t* first, size_t* bytes, uint64_t address) {
  const std::lock_guard lock(s_mutex);
  if (t_pushed < 1) return k_invalid_context;
  const auto holder = holder_of(address, 1);
  if (holder == s_memory.end() && !has_system_memory()) return k_not_found;
  *first = holder == s_memory.end() ? 0 : holder->first;
  *bytes = holder == s_memory.end() ? SIZE_MAX : holder->second;
  return k_success;
}
KILN_EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  if (!is_device_memory(pointer_of(to), bytes)) return k_invalid_value;
  const auto* first = static_cast<const uint8_t*>(from);
  return put(stream, [to, staged = std::vector<uint8_t>(first, first + bytes)]() -> std::string {
    std::memcpy(pointer_of(to), staged.data(), staged.size());
    return {};
  });
}
KILN_EXPORT int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  return is_device_memory(pointer_of(from), bytes) ? copy(stream, to, pointer_of(from), bytes) : k_invalid_value;
}
KILN_EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  const bool are_both = is_device_memory(pointer_of(from), bytes) && is_device_memory(pointer_of(to), bytes);
  return are_both ? copy(stream, pointer_of(to), pointer_of(from), bytes) : k_invalid_value;
}

// Streams.

KILN_EXPORT int cuStreamCreate(void** stream, unsigned) {
  if (const int refused = ready(); refused != k_success) return refused;
  *stream = new char;
  return k_success;
}
KILN_EXPORT int cuStreamDestroy_v2(void* stream) {
  if (t_pushed < 1) return k_invalid_context;
  finish(stream, false);
  delete static_cast<char*>(stream);
  return k_success;
}
KILN_EXPORT int cuStreamSynchronize(void* stream) {
  const std::lock_guard lock(s_mutex);
  const int refused = s_captures.contains(stream) ? ready_uncaptured() : ready();
  return refused == k_success ? finish(stream, false) : refused;
}
/// For the vendor's libraries, which have no kernels here.
KILN_EXPORT int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  return put(stream, [=]() -> std::string {
    function(data);
    return {};
  });
}

// Events.

KILN_EXPORT int cuEventCreate(void** event, unsigned flags) {
  if (flags != 0) return k_invalid_value;
  *event = new std::optional<std::chrono::steady_clock::time_point>;
  return ready();
}
KILN_EXPORT int cuEventDestroy_v2(void* event) {
  delete static_cast<std::optional<std::chrono::steady_clock::time_point>*>(event);
  return t_pushed < 1 ? k_invalid_context : k_success;
}
KILN_EXPORT int cuEventRecord(void* event, void* stream) {
  return put(stream, [event]() -> std::string {
    static_cast<std::optional<std::chrono::steady_clock::time_point>*>(event)->emplace(
        std::chrono::steady_clock::now());
    return {};
  });
}
KILN_EXPORT int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  const auto& from = *static_cast<std::optional<std::chrono::steady_clock::time_point>*>(begin);
  const auto& to = *static_cast<std::optional<std::chrono::steady_clock::time_point>*>(end);
  if (!from || !to) return k_not_ready;
  *milliseconds = std::chrono::duration<float, std::milli>(*to - *from).count();
  return ready();
}

// Graphs.

KILN_EXPORT int cuStreamBeginCapture_v2(void* stream, int) {
  const std::lock_guard lock(s_mutex);
  if (const int refused = ready(); refused != k_success) return refused;
  if (stream == nullptr) return k_capture_unsupported;
  return s_captures.try_emplace(stream).second ? k_success : k_invalid_value;
}
KILN_EXPORT int cuStreamEndCapture(void* stream, void** graph) {
  const std::lock_guard lock(s_mutex);
  auto captured = s_captures.extract(stream);
  if (captured.empty()) return k_invalid_value;
  *graph = nullptr;
  if (captured.mapped().is_invalid) return k_capture_invalidated;
  *graph = new Graph(std::move(captured.mapped()));
  return k_success;
}
KILN_EXPORT int cuStreamIsCapturing(void* stream, int* status) {
  const std::lock_guard lock(s_mutex);
  const auto captured = s_captures.find(stream);
  *status = captured == s_captures.end() ? 0 : captured->second.is_invalid ? 2 : 1;
  return t_pushed < 1 ? k_invalid_context : k_success;
}
KILN_EXPORT int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  if (flags != 0) return k_invalid_value;
  *executable = new Graph(*static_cast<const Graph*>(graph));
  return ready();
}
KILN_EXPORT int cuGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return t_pushed < 1 ? k_invalid_context : k_success;
}
KILN_EXPORT int cuGraphExecDestroy(void* executable) { return cuGraphDestroy(executable); }
KILN_EXPORT int cuGraphLaunch(void* executable, void* stream) {
  const std::lock_guard lock(s_mutex);
  if (s_captures.contains(stream)) return ready_uncaptured();
  for (const auto& command : static_cast<const Graph*>(executable)->commands) {
    if (const int refused = put(stream, command); refused != k_success) return refused;
  }
  return k_success;
}

// Kernels.

KILN_EXPORT int cuModuleLoadData(void** module, const void* image) {
  const std::lock_guard lock(s_mutex);
  if (const int refused = ready_uncaptured(); refused != k_success) return refused;
  auto loaded = HostModule::load({static_cast<const uint8_t*>(image), size_of_object(image)});
  if (!loaded.ok()) return k_invalid_image;
  *module = new LoadedModule{{std::make_shared<const HostModule>(std::move(*loaded))}};
  return k_success;
}
KILN_EXPORT int cuModuleUnload(void* module) {
  if (t_pushed < 1) return k_invalid_context;
  finish(nullptr, true);
  delete static_cast<LoadedModule*>(module);
  return k_success;
}
KILN_EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = &static_cast<LoadedModule*>(module)->function;
  return static_cast<LoadedModule*>(module)->function.module->has(name) ? k_success : k_not_found;
}
KILN_EXPORT int cuFuncSetAttribute(void* function, int attribute, int value) {
  constexpr int k_dynamic_shared = 8;
  if (attribute != k_dynamic_shared || value < 0 || value > k_shared_bytes) return k_invalid_value;
  static_cast<Function*>(function)->most_shared_bytes = static_cast<uint32_t>(value);
  return k_success;
}
KILN_EXPORT int cuLaunchKernel(void* handle, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned ty,
                               unsigned tz, unsigned shared_bytes, void* stream, void** arguments, void** extra) {
  const auto& function = *static_cast<Function*>(handle);
  const uint32_t cluster = function.module->cluster();
  if (y != 1 || z != 1 || ty != 1 || tz != 1 || extra != nullptr) return k_invalid_value;
  if (blocks == 0 || blocks % cluster != 0 || threads == 0 || threads > 1024) return k_invalid_value;
  if (shared_bytes > function.most_shared_bytes) return k_launch_out_of_resources;
  // Arguments are the driver's from here on; maps in them stand at multiples of 64.
  const size_t bytes = function.module->argument_bytes();
  std::vector<uint64_t> argument((bytes + 63) / 64 * 8 + 8);
  std::memcpy(argument.data(), arguments[0], bytes);
  return put(stream, [=, module = function.module]() -> std::string {
    alignas(64) uint8_t aligned[4096];
    if (bytes > sizeof aligned) return "an argument of more bytes than a kernel takes";
    std::memcpy(aligned, argument.data(), bytes);
    const LaunchShape shape{.blocks = blocks,
                            .threads = threads,
                            .cluster = cluster,
                            .shared_bytes = shared_bytes,
                            .constants = module->constants()};
    return Machine::launch(shape, buffers_of(argument), s_launches++, [&] { module->call(aligned); });
  });
}
KILN_EXPORT int cuTensorMapEncodeTiled(void* encoded, int type, uint32_t rank, void* address, const uint64_t* extents,
                                       const uint64_t* stride_bytes, const uint32_t* box, const uint32_t* steps,
                                       int interleave, int swizzle, int, int fill) {
  static const std::map<int, uint64_t> k_element_bytes = {{6, 2}, {7, 4}, {8, 8}, {9, 2}};
  const auto element = k_element_bytes.find(type);
  if (rank != EmulatedTensorMap::k_rank || interleave != 0 || fill != 0 || element == k_element_bytes.end() ||
      (swizzle != 0 && swizzle != 3) || reinterpret_cast<uintptr_t>(encoded) % 64 != 0) {
    return k_invalid_value;
  }
  EmulatedTensorMap map;
  map.data = static_cast<uint8_t*>(address);
  map.strides_bytes = {element->second, stride_bytes[0], stride_bytes[1], stride_bytes[2]};
  map.swizzle = swizzle == 3 ? Swizzle::bytes_128 : Swizzle::none;
  for (uint32_t dim = 0; dim < rank; ++dim) {
    if (steps[dim] != 1) return k_invalid_value;
    map.extents[dim] = extents[dim];
    map.box[dim] = box[dim];
  }
  if (const std::string refusal = why_refused(map); !refusal.empty()) {
    std::fprintf(stderr, "cuda stand-in: %s\n", refusal.c_str());
    return k_invalid_value;
  }
  std::memcpy(encoded, &map, sizeof map);
  return k_success;
}

// NOLINTEND(readability-identifier-naming)
