#include "backends/cuda/cudnn/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "backends/cuda/cublaslt/library.h"

namespace kiln::cuda {
namespace {

// cudnnStatus_t, as far as it means something of its own here; a thousand is a category.
constexpr CudnnResult k_not_initialised = 1001;
constexpr CudnnResult k_parts_of_other_version = 1002;
constexpr CudnnResult k_text_of_other_version = 1003;
constexpr CudnnResult k_incompatible_driver = 3005;
constexpr CudnnResult k_incompatible_runtime = 3006;
constexpr CudnnResult k_arch_mismatch = 3007;
constexpr CudnnResult k_host_allocation_failed = 4003;
constexpr CudnnResult k_device_allocation_failed = 4004;

// Before it gradients of keys whose number is no multiple of 128 take another graph (cudnn-frontend, SDPA backward).
constexpr uint64_t k_least_version = 91600;

Status resolve(const Library& library, CudnnFunctions& api) {
  KILN_RETURN_IF_ERROR(library.resolve("cudnnGetVersion", api.version));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnGetErrorString", api.error_string));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnGetLastErrorString", api.last_error));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnCreate", api.create));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnDestroy", api.destroy));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnSetStream", api.set_stream));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnBackendCreateDescriptor", api.create_descriptor));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnBackendDestroyDescriptor", api.destroy_descriptor));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnBackendFinalize", api.finalise));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnBackendSetAttribute", api.set_attribute));
  KILN_RETURN_IF_ERROR(library.resolve("cudnnBackendGetAttribute", api.get_attribute));
  return library.resolve("cudnnBackendExecute", api.execute);
}

/// It ends a process that has not this one as well.
Status open_cublas(const SearchPath& search) {
  for (const std::string& name : cublaslt_files()) {
    if (dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr) return {};
  }
  const auto cublas = Library::open(search, cublaslt_files());
  return cublas.ok() ? Status() : error(StatusCode::failed_precondition, "{}", cublas.status().message());
}

StatusCode code_of(CudnnResult result) {
  switch (result) {
    case k_not_initialised:
      return StatusCode::unavailable;
    case k_parts_of_other_version:
    case k_text_of_other_version:
    case k_incompatible_driver:
    case k_incompatible_runtime:
    case k_arch_mismatch:
      return StatusCode::failed_precondition;
    case k_host_allocation_failed:
    case k_device_allocation_failed:
      return StatusCode::resource_exhausted;
    default:
      break;
  }
  switch (result / 1000) {
    case 2:
      return StatusCode::invalid_argument;
    case 3:
      return StatusCode::unimplemented;
    case 5:
      return StatusCode::aborted;
    default:
      return StatusCode::internal;
  }
}

}  // namespace

const Expected<Cudnn>& Cudnn::of_process() {
  static const Expected<Cudnn> cudnn = open(search_path_of_process({"libcudnn.so.9"}));
  return cudnn;
}

Expected<Cudnn> Cudnn::open(const SearchPath& search) {
  Cudnn cudnn;
  KILN_ASSIGN_OR_RETURN(cudnn.m_library, Library::open(search, {std::string(k_cudnn_file)}));
  KILN_RETURN_IF_ERROR(open_cublas(search).with_context(cudnn.m_library.path()));
  auto api = std::make_shared<CudnnFunctions>();
  KILN_RETURN_IF_ERROR(resolve(cudnn.m_library, *api));
  cudnn.m_version = api->version();
  if (cudnn.m_version < k_least_version) {
    return error(StatusCode::failed_precondition, "{} is version {}, {} is needed", cudnn.m_library.path(),
                 version_text(cudnn.m_version), version_text(k_least_version));
  }
  cudnn.m_api = std::move(api);
  return cudnn;
}

std::string Cudnn::identity() const {
  return fmt::format("cudnn {} {}", version_text(m_version), m_library.build_id());
}

Status Cudnn::status_of(CudnnResult result, std::string_view call) const {
  if (result == 0) return {};
  char why[1024] = {};
  m_api->last_error(why, sizeof why - 1);
  return error(code_of(result), "cudnn: {}: {} ({}): {}", call, m_api->error_string(result), result, why);
}

}  // namespace kiln::cuda
