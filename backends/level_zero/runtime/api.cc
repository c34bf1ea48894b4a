#include "backends/level_zero/runtime/api.h"

namespace kiln::level_zero {
namespace {

struct ResultRow {
  ze_result_t result;
  StatusCode code;
  std::string_view name;
};

constexpr ResultRow k_results[] = {
    {ZE_RESULT_ERROR_UNINITIALIZED, StatusCode::unavailable, "no driver is initialised"},
    {ZE_RESULT_ERROR_DEVICE_LOST, StatusCode::internal, "the device was lost"},
    {ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, StatusCode::resource_exhausted, "out of host memory"},
    {ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, StatusCode::resource_exhausted, "out of device memory"},
    {ZE_RESULT_ERROR_UNSUPPORTED_SIZE, StatusCode::resource_exhausted, "the size is not supported"},
    {ZE_RESULT_ERROR_MODULE_BUILD_FAILURE, StatusCode::internal, "the driver's compiler failed"},
    {ZE_RESULT_ERROR_MODULE_LINK_FAILURE, StatusCode::internal, "the driver's linker failed"},
    {ZE_RESULT_ERROR_INVALID_NATIVE_BINARY, StatusCode::failed_precondition, "native code of another device or driver"},
    {ZE_RESULT_ERROR_INVALID_KERNEL_NAME, StatusCode::invalid_argument, "the module has no such kernel"},
    {ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION, StatusCode::failed_precondition, "the group is too large"},
    {ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, StatusCode::failed_precondition, "the driver does not support it"},
    {ZE_RESULT_ERROR_UNSUPPORTED_VERSION, StatusCode::failed_precondition, "the driver has another version"},
    {ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS, StatusCode::permission_denied, "the device may not be used"},
    {ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE, StatusCode::unavailable, "something the driver needs is absent"},
    {ZE_RESULT_NOT_READY, StatusCode::deadline_exceeded, "not ready"},
};

}  // namespace

Expected<std::unique_ptr<const Api>> Api::open(const SearchPath& search) {
  auto library = Library::open(search, {"libze_loader.so.1"});
  if (!library.ok()) return library.status().with_context("level zero: no loader");
  auto api = std::make_unique<Api>();
  api->library = std::move(library).value();
#define KILN_LEVEL_ZERO_FIND(name)                                                     \
  if (const Status found = api->library.resolve("ze" #name, api->name); !found.ok()) { \
    return found.with_context("level zero");                                           \
  }
  KILN_LEVEL_ZERO_FUNCTIONS(KILN_LEVEL_ZERO_FIND)
#undef KILN_LEVEL_ZERO_FIND
  // A failed initialisation must be the last call: asking such a loader for drivers crashes it.
  if (const Status ready = to_status(api->Init(ZE_INIT_FLAG_GPU_ONLY), "zeInit"); !ready.ok()) {
    return error(StatusCode::unavailable, "level zero: {} finds no usable driver: {}", api->library.path(),
                 ready.message());
  }
  return std::unique_ptr<const Api>(std::move(api));
}

Status to_status(ze_result_t result, std::string_view what) {
  if (result == ZE_RESULT_SUCCESS) return {};
  for (const ResultRow& row : k_results) {
    if (row.result == result) return error(row.code, "{}: {}", what, row.name);
  }
  return error(StatusCode::internal, "{}: result {:#x}", what, static_cast<uint32_t>(result));
}

}  // namespace kiln::level_zero
