// A driver for the real Level Zero loader (ZE_ENABLE_ALT_DRIVERS) that shows one device and has an OpenCL runtime of the
// host ($STAND_IN_OPENCL_CPU) execute its kernels. What it proves, and what not, is in README.md.
//
// Everything appended to a command list waits until the host waits for an event: a caller that forgot to wait finds
// memory as it was. Global state under one lock; handles are pointers to the structs below.
#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>
#include <level_zero/zes_api.h>
#include <level_zero/zes_ddi.h>
#include <level_zero/zet_api.h>
#include <level_zero/zet_ddi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "tests/stand_ins/level_zero/executor.h"

#define KILN_EXPORT extern "C" __attribute__((visibility("default")))

namespace kiln::stand_in {
namespace {

constexpr uint32_t k_vendor_id = 0x8086;
constexpr uint64_t k_memory_bytes = uint64_t{4} << 30;
constexpr uint8_t k_fresh_memory = 0xCD;
constexpr char k_magic[8] = {'s', 't', 'a', 'n', 'd', '-', 'i', 'n'};

/// What the device may call itself: $STAND_IN_DEVICE.
struct Model {
  const char* name;
  uint32_t device_id;
  ze_device_module_flags_t modules;
  uint32_t local_memory_bytes;
  std::array<uint32_t, 3> sub_group_sizes;  // 0: no more
};
constexpr std::array<Model, 2> k_models{{
    {"pvc", 0x0bd5, ZE_DEVICE_MODULE_FLAG_FP16 | ZE_DEVICE_MODULE_FLAG_FP64, 128 << 10, {16, 32}},
    {"dg2", 0x56a0, ZE_DEVICE_MODULE_FLAG_FP16, 64 << 10, {8, 16, 32}},
}};

/// ze_intel_device_module_dp_exp_properties_t of the vendor's header ze_intel_gpu.h.
struct DotProductProperties {
  static constexpr uint32_t k_type = 0x00030013, k_dp4a = 1, k_dpas = 2;
  uint32_t type;
  DotProductProperties* next;
  uint32_t flags;
};

struct Event {
  bool is_signalled = false;
};
struct List {
  bool is_synchronous;  // its calls wait for their work
};
struct Command {
  List* list = nullptr;
  std::function<std::string()> run;
  Event* signal = nullptr;
};
struct Log {
  std::string text;
};
struct Module {
  std::shared_ptr<Executor::Program> program;
  bool is_linked = true;  // all functions that it imports were found
};
struct Kernel {
  std::shared_ptr<Executor::Program> program;
  std::string name;
  std::vector<void*> arguments;
  uint32_t group_size = 0;
};

std::recursive_mutex s_mutex;
std::unique_ptr<Executor> s_executor;
std::deque<Command> s_pending;
std::map<uintptr_t, size_t> s_memory;  // address → bytes
bool s_lost = false;
int s_driver, s_broken_driver, s_device, s_context, s_pool;  // their addresses are handles

template <typename T, typename Handle>
T* as(Handle handle) {
  return reinterpret_cast<T*>(handle);
}

uint32_t driver_version() {
  const char* version = std::getenv("STAND_IN_DRIVER");
  return version == nullptr ? 1 : static_cast<uint32_t>(std::strtoul(version, nullptr, 0));
}

const Model& model() {
  const char* name = std::getenv("STAND_IN_DEVICE");
  const auto known = std::ranges::find_if(
      k_models, [&](const Model& model) { return name != nullptr && std::strcmp(name, model.name) == 0; });
  return known == k_models.end() ? k_models.front() : *known;
}

/// With STAND_IN_SYSTEM_MEMORY the device reaches all of the host's memory, as integrated ones do.
bool is_device_memory(const void* pointer, size_t bytes) {
  if (std::getenv("STAND_IN_SYSTEM_MEMORY") != nullptr) return true;
  auto after = s_memory.upper_bound(reinterpret_cast<uintptr_t>(pointer));
  if (after == s_memory.begin()) return false;
  --after;
  return reinterpret_cast<uintptr_t>(pointer) + bytes <= after->first + after->second;
}

bool has_fault(const char* which) {
  const char* fault = std::getenv("STAND_IN_FAULT");
  return fault != nullptr && std::strcmp(fault, which) == 0;
}

ze_result_t fail(ze_result_t result, const std::string& words) {
  std::fprintf(stderr, "level zero stand-in: %s\n", words.c_str());
  return result;
}

/// One handle in the API's way of being asked twice.
template <typename Handle>
ze_result_t give_one(uint32_t* count, Handle* handles, void* one) {
  if (*count > 0 && handles != nullptr) handles[0] = static_cast<Handle>(one);
  *count = 1;
  return ZE_RESULT_SUCCESS;
}

// Driver and device.

ze_result_t init(ze_init_flags_t) {
  const std::lock_guard lock(s_mutex);
  if (s_executor != nullptr) return ZE_RESULT_SUCCESS;
  std::string reason;
  s_executor = Executor::open(std::getenv("STAND_IN_OPENCL_CPU"), reason);
  return s_executor == nullptr ? fail(ZE_RESULT_ERROR_UNINITIALIZED, reason) : ZE_RESULT_SUCCESS;
}

ze_result_t get_drivers(uint32_t* count, ze_driver_handle_t* drivers) {
  if (!has_fault("broken-driver")) return give_one(count, drivers, &s_driver);
  if (*count > 1 && drivers != nullptr) drivers[1] = reinterpret_cast<ze_driver_handle_t>(&s_driver);
  give_one(count, drivers, &s_broken_driver);
  *count = 2;
  return ZE_RESULT_SUCCESS;
}
ze_result_t get_devices(ze_driver_handle_t, uint32_t* count, ze_device_handle_t* devices) {
  return give_one(count, devices, reinterpret_cast<ze_device_handle_t>(&s_device));
}
ze_result_t get_api_version(ze_driver_handle_t, ze_api_version_t* version) {
  *version = ZE_API_VERSION_1_3;
  return ZE_RESULT_SUCCESS;
}
ze_result_t get_driver_properties(ze_driver_handle_t driver, ze_driver_properties_t* properties) {
  if (as<int>(driver) == &s_broken_driver) return ZE_RESULT_ERROR_UNKNOWN;
  properties->driverVersion = driver_version();
  return ZE_RESULT_SUCCESS;
}

ze_result_t get_device_properties(ze_device_handle_t, ze_device_properties_t* properties) {
  properties->type = ZE_DEVICE_TYPE_GPU;
  properties->vendorId = k_vendor_id;
  properties->deviceId = model().device_id;
  properties->maxMemAllocSize = k_memory_bytes;
  std::strcpy(properties->name, "stand-in on the host");
  return ZE_RESULT_SUCCESS;
}

ze_result_t get_compute_properties(ze_device_handle_t, ze_device_compute_properties_t* properties) {
  properties->maxTotalGroupSize = properties->maxGroupSizeX = 1024;
  properties->maxGroupSizeY = properties->maxGroupSizeZ = 1024;
  properties->maxGroupCountX = properties->maxGroupCountY = properties->maxGroupCountZ = INT32_MAX;
  properties->maxSharedLocalMemory = model().local_memory_bytes;
  properties->numSubGroupSizes = 0;
  for (const uint32_t size : model().sub_group_sizes) {
    if (size != 0) properties->subGroupSizes[properties->numSubGroupSizes++] = size;
  }
  return ZE_RESULT_SUCCESS;
}

ze_result_t get_module_properties(ze_device_handle_t, ze_device_module_properties_t* properties) {
  properties->spirvVersionSupported = ZE_MAKE_VERSION(1, 2);
  properties->flags = model().modules;
  properties->maxArgumentsSize = 2048;
  std::memcpy(properties->nativeKernelSupported.id, k_magic, sizeof k_magic);
  for (auto* asked = static_cast<DotProductProperties*>(properties->pNext); asked != nullptr; asked = asked->next) {
    if (asked->type != DotProductProperties::k_type || has_fault("no-matrix-functions")) continue;
    asked->flags = DotProductProperties::k_dp4a | (has_fault("no-matrix-units") ? 0 : DotProductProperties::k_dpas);
  }
  return ZE_RESULT_SUCCESS;
}

ze_result_t get_queue_groups(ze_device_handle_t, uint32_t* count, ze_command_queue_group_properties_t* properties) {
  if (*count > 0 && properties != nullptr) {
    properties->flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE | ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY;
    properties->numQueues = 1;
  }
  *count = 1;
  return ZE_RESULT_SUCCESS;
}

ze_result_t get_memory_properties(ze_device_handle_t, uint32_t* count, ze_device_memory_properties_t* properties) {
  if (*count > 0 && properties != nullptr) properties->totalSize = k_memory_bytes;
  *count = 1;
  return ZE_RESULT_SUCCESS;
}

// Context and memory.

ze_result_t create_context(ze_driver_handle_t, const ze_context_desc_t*, ze_context_handle_t* context) {
  *context = reinterpret_cast<ze_context_handle_t>(&s_context);
  return ZE_RESULT_SUCCESS;
}
ze_result_t destroy_context(ze_context_handle_t) { return ZE_RESULT_SUCCESS; }

ze_result_t allocate(ze_context_handle_t, const ze_device_mem_alloc_desc_t*, size_t bytes, size_t alignment,
                     ze_device_handle_t, void** memory) {
  const std::lock_guard lock(s_mutex);
  if (bytes > k_memory_bytes) return ZE_RESULT_ERROR_UNSUPPORTED_SIZE;
  *memory = s_executor->allocate(bytes, alignment);
  if (*memory == nullptr) return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
  std::memset(*memory, k_fresh_memory, bytes);
  s_memory[reinterpret_cast<uintptr_t>(*memory)] = bytes;
  return ZE_RESULT_SUCCESS;
}

ze_result_t release(ze_context_handle_t, void* memory) {
  const std::lock_guard lock(s_mutex);
  if (s_memory.erase(reinterpret_cast<uintptr_t>(memory)) == 0) return ZE_RESULT_ERROR_INVALID_ARGUMENT;
  s_executor->release(memory);
  return ZE_RESULT_SUCCESS;
}

// Modules and kernels. Native code is the runtime's own binary behind a mark and the version of this driver.

struct NativeHeader {
  char magic[8];
  uint32_t driver;
};

ze_result_t create_module(ze_context_handle_t, ze_device_handle_t, const ze_module_desc_t* description,
                          ze_module_handle_t* module, ze_module_build_log_handle_t* log) {
  const std::lock_guard lock(s_mutex);
  std::span code(description->pInputModule, description->inputSize);
  const bool is_native = description->format == ZE_MODULE_FORMAT_NATIVE;
  if (is_native) {
    NativeHeader header{};
    if (code.size() <= sizeof header) return ZE_RESULT_ERROR_INVALID_NATIVE_BINARY;
    std::memcpy(&header, code.data(), sizeof header);
    if (std::memcmp(header.magic, k_magic, sizeof k_magic) != 0 || header.driver != driver_version()) {
      return ZE_RESULT_ERROR_INVALID_NATIVE_BINARY;
    }
    code = code.subspan(sizeof header);
  }
  // As drivers' compilers were seen to do with input they did not expect.
  if (!is_native && has_fault("compiler-exits")) _exit(1);
  auto words = std::make_unique<Log>();
  std::shared_ptr<Executor::Program> program = s_executor->build(code, is_native, words->text);
  if (log != nullptr) *log = reinterpret_cast<ze_module_build_log_handle_t>(words.release());
  if (program == nullptr) return ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
  const bool has_functions = !has_fault("no-matrix-units") && !has_fault("no-matrix-functions");
  const bool is_linked = is_native || has_functions || !imports_functions(code);
  *module = reinterpret_cast<ze_module_handle_t>(new Module{std::move(program), is_linked});
  return ZE_RESULT_SUCCESS;
}

ze_result_t destroy_module(ze_module_handle_t module) {
  delete as<Module>(module);
  return ZE_RESULT_SUCCESS;
}

ze_result_t get_native(ze_module_handle_t module, size_t* bytes, uint8_t* code) {
  const std::lock_guard lock(s_mutex);
  NativeHeader header{};
  std::memcpy(header.magic, k_magic, sizeof k_magic);
  header.driver = driver_version();
  const std::vector<uint8_t> binary = as<Module>(module)->program->binary();
  if (code != nullptr) {
    if (*bytes < sizeof header + binary.size()) return ZE_RESULT_ERROR_INVALID_SIZE;
    std::memcpy(code, &header, sizeof header);
    std::memcpy(code + sizeof header, binary.data(), binary.size());
  }
  *bytes = sizeof header + binary.size();
  return ZE_RESULT_SUCCESS;
}

ze_result_t get_log(ze_module_build_log_handle_t log, size_t* bytes, char* text) {
  const std::string& words = as<Log>(log)->text;
  if (text != nullptr) std::memcpy(text, words.c_str(), std::min(*bytes, words.size() + 1));
  *bytes = words.size() + 1;
  return ZE_RESULT_SUCCESS;
}

ze_result_t destroy_log(ze_module_build_log_handle_t log) {
  delete as<Log>(log);
  return ZE_RESULT_SUCCESS;
}

ze_result_t create_kernel(ze_module_handle_t module, const ze_kernel_desc_t* description, ze_kernel_handle_t* kernel) {
  const std::lock_guard lock(s_mutex);
  if (!as<Module>(module)->is_linked) return ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED;
  const auto& program = as<Module>(module)->program;
  const int arguments = program->argument_count(description->pKernelName);
  if (arguments < 0) return ZE_RESULT_ERROR_INVALID_KERNEL_NAME;
  *kernel = reinterpret_cast<ze_kernel_handle_t>(
      new Kernel{program, description->pKernelName, std::vector<void*>(static_cast<size_t>(arguments), nullptr)});
  return ZE_RESULT_SUCCESS;
}

ze_result_t destroy_kernel(ze_kernel_handle_t kernel) {
  delete as<Kernel>(kernel);
  return ZE_RESULT_SUCCESS;
}

ze_result_t set_group_size(ze_kernel_handle_t kernel, uint32_t x, uint32_t y, uint32_t z) {
  if (x == 0 || x > 1024 || y != 1 || z != 1) return ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION;
  as<Kernel>(kernel)->group_size = x;
  return ZE_RESULT_SUCCESS;
}

ze_result_t set_argument(ze_kernel_handle_t handle, uint32_t index, size_t bytes, const void* value) {
  const std::lock_guard lock(s_mutex);
  auto* kernel = as<Kernel>(handle);
  if (index >= kernel->arguments.size()) return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX;
  if (bytes != sizeof(void*)) return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE;
  void* pointer = nullptr;
  std::memcpy(static_cast<void*>(&pointer), value, sizeof pointer);
  if (!is_device_memory(pointer, 0)) {
    return fail(ZE_RESULT_ERROR_INVALID_ARGUMENT, "argument " + std::to_string(index) + " is no device memory");
  }
  kernel->arguments[index] = pointer;
  return ZE_RESULT_SUCCESS;
}

// Command lists and events.

ze_result_t create_list(ze_context_handle_t, ze_device_handle_t, const ze_command_queue_desc_t* description,
                        ze_command_list_handle_t* list) {
  *list = reinterpret_cast<ze_command_list_handle_t>(new List{description->mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS});
  return ZE_RESULT_SUCCESS;
}
ze_result_t destroy_list(ze_command_list_handle_t handle) {
  const std::lock_guard lock(s_mutex);
  const std::unique_ptr<List> list(as<List>(handle));
  const bool is_idle =
      std::none_of(s_pending.begin(), s_pending.end(), [&](const Command& c) { return c.list == list.get(); });
  if (is_idle || s_lost) return ZE_RESULT_SUCCESS;
  s_lost = true;
  return fail(ZE_RESULT_ERROR_DEVICE_LOST, "a command list is destroyed under its commands");
}

/// Does the oldest of what is pending. A command that fails loses the device; its event is signalled all the same, so that
/// nobody waits for ever.
void run_one() {
  const Command command = std::move(s_pending.front());
  s_pending.pop_front();
  if (!s_lost) {
    if (const std::string words = command.run(); !words.empty()) {
      s_lost = true;
      fail(ZE_RESULT_ERROR_DEVICE_LOST, words);
    }
  }
  if (command.signal != nullptr) command.signal->is_signalled = true;
}

ze_result_t append(ze_command_list_handle_t list, std::function<std::string()> run, ze_event_handle_t signal) {
  const std::lock_guard lock(s_mutex);
  if (s_lost) return ZE_RESULT_ERROR_DEVICE_LOST;
  s_pending.push_back({as<List>(list), std::move(run), as<Event>(signal)});
  while (as<List>(list)->is_synchronous && !s_pending.empty()) run_one();
  return s_lost ? ZE_RESULT_ERROR_DEVICE_LOST : ZE_RESULT_SUCCESS;
}

ze_result_t append_copy(ze_command_list_handle_t list, void* to, const void* from, size_t bytes,
                        ze_event_handle_t signal, uint32_t, ze_event_handle_t*) {
  return append(
      list,
      [=]() -> std::string {
        if (!is_device_memory(to, bytes) && !is_device_memory(from, bytes)) return "a copy outside of device memory";
        std::memmove(to, from, bytes);
        return {};
      },
      signal);
}

ze_result_t append_barrier(ze_command_list_handle_t list, ze_event_handle_t signal, uint32_t, ze_event_handle_t*) {
  return append(list, [] { return std::string(); }, signal);
}

ze_result_t append_launch(ze_command_list_handle_t list, ze_kernel_handle_t handle, const ze_group_count_t* count,
                          ze_event_handle_t signal, uint32_t, ze_event_handle_t*) {
  const Kernel kernel = *as<Kernel>(handle);  // arguments are captured here, as the specification says
  if (kernel.group_size == 0) return ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION;
  const size_t groups = size_t{count->groupCountX} * count->groupCountY * count->groupCountZ;
  return append(
      list, [=] { return kernel.program->launch(kernel.name, kernel.arguments, groups, kernel.group_size); }, signal);
}

ze_result_t create_pool(ze_context_handle_t, const ze_event_pool_desc_t*, uint32_t, ze_device_handle_t*,
                        ze_event_pool_handle_t* pool) {
  *pool = reinterpret_cast<ze_event_pool_handle_t>(&s_pool);
  return ZE_RESULT_SUCCESS;
}
ze_result_t destroy_pool(ze_event_pool_handle_t) { return ZE_RESULT_SUCCESS; }

ze_result_t create_event(ze_event_pool_handle_t, const ze_event_desc_t*, ze_event_handle_t* event) {
  *event = reinterpret_cast<ze_event_handle_t>(new Event);
  return ZE_RESULT_SUCCESS;
}
ze_result_t destroy_event(ze_event_handle_t event) {
  delete as<Event>(event);
  return ZE_RESULT_SUCCESS;
}
ze_result_t reset_event(ze_event_handle_t event) {
  as<Event>(event)->is_signalled = false;
  return ZE_RESULT_SUCCESS;
}

/// Does what is pending until the event is signalled.
ze_result_t wait_for_event(ze_event_handle_t handle, uint64_t) {
  const std::lock_guard lock(s_mutex);
  while (!as<Event>(handle)->is_signalled && !s_pending.empty()) run_one();
  if (s_lost) return ZE_RESULT_ERROR_DEVICE_LOST;
  return as<Event>(handle)->is_signalled ? ZE_RESULT_SUCCESS : ZE_RESULT_NOT_READY;
}

}  // namespace
}  // namespace kiln::stand_in

// The loader's questions. It refuses a driver that lacks any table; functions left null answer "unsupported feature".
#define KILN_TABLE(prefix, object, type, ...)                                                 \
  KILN_EXPORT ze_result_t prefix##Get##object##ProcAddrTable(ze_api_version_t, type* table) { \
    using namespace kiln::stand_in;                                                           \
    *table = {};                                                                              \
    __VA_ARGS__;                                                                              \
    return ZE_RESULT_SUCCESS;                                                                 \
  }

KILN_TABLE(ze, Global, ze_global_dditable_t, table->pfnInit = init)
KILN_TABLE(ze, Driver, ze_driver_dditable_t, table->pfnGet = get_drivers; table->pfnGetApiVersion = get_api_version;
           table->pfnGetProperties = get_driver_properties)
KILN_TABLE(ze, Device, ze_device_dditable_t, table->pfnGet = get_devices;
           table->pfnGetProperties = get_device_properties; table->pfnGetComputeProperties = get_compute_properties;
           table->pfnGetModuleProperties = get_module_properties;
           table->pfnGetCommandQueueGroupProperties = get_queue_groups;
           table->pfnGetMemoryProperties = get_memory_properties)
KILN_TABLE(ze, Context, ze_context_dditable_t, table->pfnCreate = create_context; table->pfnDestroy = destroy_context)
KILN_TABLE(ze, Mem, ze_mem_dditable_t, table->pfnAllocDevice = allocate; table->pfnFree = release)
KILN_TABLE(ze, Module, ze_module_dditable_t, table->pfnCreate = create_module; table->pfnDestroy = destroy_module;
           table->pfnGetNativeBinary = get_native)
KILN_TABLE(ze, ModuleBuildLog, ze_module_build_log_dditable_t, table->pfnDestroy = destroy_log;
           table->pfnGetString = get_log)
KILN_TABLE(ze, Kernel, ze_kernel_dditable_t, table->pfnCreate = create_kernel; table->pfnDestroy = destroy_kernel;
           table->pfnSetGroupSize = set_group_size; table->pfnSetArgumentValue = set_argument)
KILN_TABLE(ze, CommandList, ze_command_list_dditable_t, table->pfnCreateImmediate = create_list;
           table->pfnDestroy = destroy_list; table->pfnAppendBarrier = append_barrier;
           table->pfnAppendMemoryCopy = append_copy; table->pfnAppendLaunchKernel = append_launch)
KILN_TABLE(ze, EventPool, ze_event_pool_dditable_t, table->pfnCreate = create_pool; table->pfnDestroy = destroy_pool)
KILN_TABLE(ze, Event, ze_event_dditable_t, table->pfnCreate = create_event; table->pfnDestroy = destroy_event;
           table->pfnHostSynchronize = wait_for_event; table->pfnHostReset = reset_event)
KILN_TABLE(ze, CommandQueue, ze_command_queue_dditable_t)
KILN_TABLE(ze, Fence, ze_fence_dditable_t)
KILN_TABLE(ze, Image, ze_image_dditable_t)
KILN_TABLE(ze, Sampler, ze_sampler_dditable_t)
KILN_TABLE(ze, PhysicalMem, ze_physical_mem_dditable_t)
KILN_TABLE(ze, VirtualMem, ze_virtual_mem_dditable_t)
KILN_TABLE(zet, Device, zet_device_dditable_t)
KILN_TABLE(zet, Context, zet_context_dditable_t)
KILN_TABLE(zet, CommandList, zet_command_list_dditable_t)
KILN_TABLE(zet, Kernel, zet_kernel_dditable_t)
KILN_TABLE(zet, Module, zet_module_dditable_t)
KILN_TABLE(zet, Debug, zet_debug_dditable_t)
KILN_TABLE(zet, Metric, zet_metric_dditable_t)
KILN_TABLE(zet, MetricGroup, zet_metric_group_dditable_t)
KILN_TABLE(zet, MetricQuery, zet_metric_query_dditable_t)
KILN_TABLE(zet, MetricQueryPool, zet_metric_query_pool_dditable_t)
KILN_TABLE(zet, MetricStreamer, zet_metric_streamer_dditable_t)
KILN_TABLE(zet, TracerExp, zet_tracer_exp_dditable_t)
KILN_TABLE(zes, Device, zes_device_dditable_t)
KILN_TABLE(zes, Driver, zes_driver_dditable_t)
KILN_TABLE(zes, Diagnostics, zes_diagnostics_dditable_t)
KILN_TABLE(zes, Engine, zes_engine_dditable_t)
KILN_TABLE(zes, FabricPort, zes_fabric_port_dditable_t)
KILN_TABLE(zes, Fan, zes_fan_dditable_t)
KILN_TABLE(zes, Firmware, zes_firmware_dditable_t)
KILN_TABLE(zes, Frequency, zes_frequency_dditable_t)
KILN_TABLE(zes, Led, zes_led_dditable_t)
KILN_TABLE(zes, Memory, zes_memory_dditable_t)
KILN_TABLE(zes, PerformanceFactor, zes_performance_factor_dditable_t)
KILN_TABLE(zes, Power, zes_power_dditable_t)
KILN_TABLE(zes, Psu, zes_psu_dditable_t)
KILN_TABLE(zes, Ras, zes_ras_dditable_t)
KILN_TABLE(zes, Scheduler, zes_scheduler_dditable_t)
KILN_TABLE(zes, Standby, zes_standby_dditable_t)
KILN_TABLE(zes, Temperature, zes_temperature_dditable_t)
