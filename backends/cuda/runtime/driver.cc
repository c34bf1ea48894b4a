#include "backends/cuda/runtime/driver.h"

#include <stdlib.h>

namespace kiln::cuda {
namespace {

// CUresult, as far as it means something of its own here.
constexpr Result k_out_of_memory = 2;
constexpr Result k_stub_library = 34;
constexpr Result k_no_device = 100;
constexpr Result k_invalid_image = 200;
constexpr Result k_no_binary_for_device = 209;
constexpr Result k_unsupported_ptx_version = 222;
constexpr Result k_not_found = 500;
constexpr Result k_illegal_address = 700;
constexpr Result k_launch_out_of_resources = 701;

Status resolve(const Library& library, DriverFunctions& api) {
  KILN_RETURN_IF_ERROR(library.resolve("cuInit", api.init));
  KILN_RETURN_IF_ERROR(library.resolve("cuDriverGetVersion", api.driver_version));
  KILN_RETURN_IF_ERROR(library.resolve("cuGetErrorName", api.error_name));
  KILN_RETURN_IF_ERROR(library.resolve("cuDeviceGetCount", api.device_count));
  KILN_RETURN_IF_ERROR(library.resolve("cuDeviceGet", api.device));
  KILN_RETURN_IF_ERROR(library.resolve("cuDeviceGetName", api.device_name));
  KILN_RETURN_IF_ERROR(library.resolve("cuDeviceTotalMem_v2", api.device_memory));
  KILN_RETURN_IF_ERROR(library.resolve("cuDeviceGetAttribute", api.device_attribute));
  KILN_RETURN_IF_ERROR(library.resolve("cuDevicePrimaryCtxRetain", api.retain_context));
  KILN_RETURN_IF_ERROR(library.resolve("cuDevicePrimaryCtxRelease_v2", api.release_context));
  KILN_RETURN_IF_ERROR(library.resolve("cuCtxPushCurrent_v2", api.push_context));
  KILN_RETURN_IF_ERROR(library.resolve("cuCtxPopCurrent_v2", api.pop_context));
  KILN_RETURN_IF_ERROR(library.resolve("cuMemAlloc_v2", api.allocate));
  KILN_RETURN_IF_ERROR(library.resolve("cuMemFree_v2", api.release));
  KILN_RETURN_IF_ERROR(library.resolve("cuMemcpyHtoDAsync_v2", api.upload));
  KILN_RETURN_IF_ERROR(library.resolve("cuMemcpyDtoHAsync_v2", api.download));
  KILN_RETURN_IF_ERROR(library.resolve("cuMemcpyDtoDAsync_v2", api.copy));
  KILN_RETURN_IF_ERROR(library.resolve("cuStreamCreate", api.create_stream));
  KILN_RETURN_IF_ERROR(library.resolve("cuStreamDestroy_v2", api.destroy_stream));
  KILN_RETURN_IF_ERROR(library.resolve("cuStreamSynchronize", api.synchronise_stream));
  KILN_RETURN_IF_ERROR(library.resolve("cuEventCreate", api.create_event));
  KILN_RETURN_IF_ERROR(library.resolve("cuEventDestroy_v2", api.destroy_event));
  KILN_RETURN_IF_ERROR(library.resolve("cuEventRecord", api.record_event));
  KILN_RETURN_IF_ERROR(library.resolve("cuEventElapsedTime", api.milliseconds_between));
  KILN_RETURN_IF_ERROR(library.resolve("cuStreamBeginCapture_v2", api.begin_capture));
  KILN_RETURN_IF_ERROR(library.resolve("cuStreamEndCapture", api.end_capture));
  KILN_RETURN_IF_ERROR(library.resolve("cuStreamIsCapturing", api.capture_status));
  KILN_RETURN_IF_ERROR(library.resolve("cuGraphInstantiateWithFlags", api.instantiate));
  KILN_RETURN_IF_ERROR(library.resolve("cuGraphDestroy", api.destroy_graph));
  KILN_RETURN_IF_ERROR(library.resolve("cuGraphExecDestroy", api.destroy_executable_graph));
  KILN_RETURN_IF_ERROR(library.resolve("cuGraphLaunch", api.launch_graph));
  KILN_RETURN_IF_ERROR(library.resolve("cuModuleLoadData", api.load_module));
  KILN_RETURN_IF_ERROR(library.resolve("cuModuleUnload", api.unload_module));
  KILN_RETURN_IF_ERROR(library.resolve("cuModuleGetFunction", api.find_function));
  KILN_RETURN_IF_ERROR(library.resolve("cuFuncSetAttribute", api.set_function_attribute));
  KILN_RETURN_IF_ERROR(library.resolve("cuLaunchKernel", api.launch));
  if (!library.resolve("cuTensorMapEncodeTiled", api.encode_map).ok()) api.encode_map = nullptr;
  return {};
}

Status unavailable(std::string why) { return {StatusCode::unavailable, "cuda: " + std::move(why)}; }

Status status_of_init(const Driver& driver, Result result) {
  if (result == k_stub_library) {
    return unavailable(driver.library().path() + " is the toolkit's stub, not a driver: install the driver");
  }
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (result == k_no_device && visible != nullptr) {
    return unavailable(fmt::format("no device is visible: CUDA_VISIBLE_DEVICES is \"{}\"", visible));
  }
  if (result == k_no_device) return unavailable("the driver finds no device");
  return {StatusCode::unavailable, driver.status_of(result, "cuInit").message()};
}

StatusCode code_of(Result result) {
  switch (result) {
    case k_out_of_memory:
      return StatusCode::resource_exhausted;
    case k_invalid_image:
    case k_not_found:
      return StatusCode::invalid_argument;
    case k_no_binary_for_device:
    case k_unsupported_ptx_version:
    case k_launch_out_of_resources:
      return StatusCode::failed_precondition;
    case k_illegal_address:
      return StatusCode::aborted;
    default:
      return StatusCode::internal;
  }
}

}  // namespace

Expected<Driver> Driver::open(const SearchPath& search) {
  Driver driver;
  auto library = Library::open(search, {"libcuda.so.1"});
  if (!library.ok()) return unavailable("no driver: " + library.status().message());
  driver.m_library = std::move(library).value();
  if (const Status resolved = resolve(driver.m_library, driver.m_api); !resolved.ok())
    return unavailable(resolved.message());
  if (const Result result = driver.m_api.init(0); result != 0) return status_of_init(driver, result);
  if (const Result result = driver.m_api.driver_version(&driver.m_version); result != 0) {
    return Status(StatusCode::unavailable, driver.status_of(result, "cuDriverGetVersion").message());
  }
  return driver;
}

Status Driver::status_of(Result result, std::string_view call) const {
  if (result == 0) return {};
  const char* name = nullptr;
  if (m_api.error_name == nullptr || m_api.error_name(result, &name) != 0 || name == nullptr) name = "unknown error";
  return error(code_of(result), "cuda: {}: {} ({})", call, name, result);
}

}  // namespace kiln::cuda
