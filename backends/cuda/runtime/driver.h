#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/libraries.h"
#include "base/expected.h"

/// The vendor's driver API, opened at run time. Declared here as far as it is used: its C interface keeps its names and
/// numbers (cuda.h), and a renewed function gets a new name (…_v2).
namespace kiln::cuda {

using Result = int;
using DeviceNumber = int;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using Graph = void*;
using ExecutableGraph = void*;
using Event = void*;
using DevicePointer = uint64_t;

/// CUdevice_attribute.
enum class Attribute : int {
  multiprocessors = 16,
  second_level_bytes = 38,
  capability_major = 75,
  capability_minor = 76,
  shared_bytes_of_block = 97,
};

/// CUtensorMap: filled by the driver, 64-byte aligned.
struct alignas(64) EncodedMap {
  uint64_t words[16];
};

/// CUtensorMapDataType.
enum class MapType : int { f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };

/// Every function is there, or the driver was refused.
struct DriverFunctions {
  Result (*init)(unsigned) = nullptr;
  Result (*driver_version)(int*) = nullptr;
  Result (*error_name)(Result, const char**) = nullptr;
  Result (*device_count)(int*) = nullptr;
  Result (*device)(DeviceNumber*, int) = nullptr;
  Result (*device_name)(char*, int, DeviceNumber) = nullptr;
  Result (*device_memory)(size_t*, DeviceNumber) = nullptr;
  Result (*device_attribute)(int*, Attribute, DeviceNumber) = nullptr;
  Result (*retain_context)(Context*, DeviceNumber) = nullptr;
  Result (*release_context)(DeviceNumber) = nullptr;
  Result (*push_context)(Context) = nullptr;
  Result (*pop_context)(Context*) = nullptr;
  Result (*allocate)(DevicePointer*, size_t) = nullptr;
  Result (*release)(DevicePointer) = nullptr;
  Result (*upload)(DevicePointer, const void*, size_t, Stream) = nullptr;
  Result (*download)(void*, DevicePointer, size_t, Stream) = nullptr;
  Result (*copy)(DevicePointer, DevicePointer, size_t, Stream) = nullptr;
  Result (*create_stream)(Stream*, unsigned) = nullptr;
  Result (*destroy_stream)(Stream) = nullptr;
  Result (*synchronise_stream)(Stream) = nullptr;
  Result (*load_module)(Module*, const void*) = nullptr;
  Result (*unload_module)(Module) = nullptr;
  Result (*find_function)(Function*, Module, const char*) = nullptr;
  Result (*set_function_attribute)(Function, int, int) = nullptr;
  Result (*create_event)(Event*, unsigned) = nullptr;
  Result (*destroy_event)(Event) = nullptr;
  Result (*record_event)(Event, Stream) = nullptr;
  Result (*milliseconds_between)(float*, Event, Event) = nullptr;
  Result (*begin_capture)(Stream, int) = nullptr;
  Result (*end_capture)(Stream, Graph*) = nullptr;
  Result (*capture_status)(Stream, int*) = nullptr;
  Result (*instantiate)(ExecutableGraph*, Graph, unsigned long long) = nullptr;
  Result (*destroy_graph)(Graph) = nullptr;
  Result (*destroy_executable_graph)(ExecutableGraph) = nullptr;
  Result (*launch_graph)(ExecutableGraph, Stream) = nullptr;
  Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**,
                   void**) = nullptr;
  /// Since 12.0; null in older drivers.
  Result (*encode_map)(EncodedMap*, MapType, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                       const uint32_t*, int, int, int, int) = nullptr;
};

/// The driver of this host, initialised.
///
/// Threading: any thread at once. Ownership: stays open for good.
class Driver {
 public:
  /// Errors: unavailable, saying what is missing: the library, a function, a device, or that devices are hidden.
  static Expected<Driver> open(const SearchPath& search);

  const DriverFunctions& api() const { return m_api; }
  const Library& library() const { return m_library; }
  int version() const { return m_version; }  // 13000

  /// "cuda: cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1)", with the code that fits.
  Status status_of(Result result, std::string_view call) const;

 private:
  Library m_library;
  DriverFunctions m_api;
  int m_version = 0;
};

/// The device's primary context, which frameworks share, made current for this thread while this lives.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Context context)
      : m_driver(driver), m_pushed(driver.api().push_context(context)) {}
  ~ContextScope() {
    Context popped = nullptr;
    if (m_pushed == 0) m_driver.api().pop_context(&popped);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  Status status() const { return m_driver.status_of(m_pushed, "cuCtxPushCurrent"); }

 private:
  const Driver& m_driver;
  Result m_pushed;
};

}  // namespace kiln::cuda
