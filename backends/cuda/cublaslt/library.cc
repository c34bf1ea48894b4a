#include "backends/cuda/cublaslt/library.h"

#include <fmt/format.h>

namespace kiln::cuda {
namespace {

// cublasStatus_t, as far as it means something of its own here.
constexpr CublasltResult k_not_initialised = 1;
constexpr CublasltResult k_allocation_failed = 3;
constexpr CublasltResult k_invalid_value = 7;
constexpr CublasltResult k_arch_mismatch = 8;
constexpr CublasltResult k_execution_failed = 13;
constexpr CublasltResult k_not_supported = 15;

Status resolve(const Library& library, CublasltFunctions& api) {
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtGetVersion", api.version));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtGetStatusName", api.result_name));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtCreate", api.create));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtDestroy", api.destroy));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatmulDescCreate", api.create_operation));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatmulDescDestroy", api.destroy_operation));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatmulDescSetAttribute", api.set_operation));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatrixLayoutCreate", api.create_layout));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatrixLayoutDestroy", api.destroy_layout));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatrixLayoutSetAttribute", api.set_layout));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatmulPreferenceCreate", api.create_preference));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatmulPreferenceDestroy", api.destroy_preference));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatmulPreferenceSetAttribute", api.set_preference));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatmulAlgoGetHeuristic", api.propose));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatmulAlgoCapGetAttribute", api.capability));
  KILN_RETURN_IF_ERROR(library.resolve("cublasLtMatmulAlgoConfigGetAttribute", api.choice));
  return library.resolve("cublasLtMatmul", api.multiply);
}

StatusCode code_of(CublasltResult result) {
  switch (result) {
    case k_not_initialised:
      return StatusCode::unavailable;
    case k_allocation_failed:
      return StatusCode::resource_exhausted;
    case k_invalid_value:
      return StatusCode::invalid_argument;
    case k_arch_mismatch:
      return StatusCode::failed_precondition;
    case k_execution_failed:
      return StatusCode::aborted;
    case k_not_supported:
      return StatusCode::unimplemented;
    default:
      return StatusCode::internal;
  }
}

}  // namespace

const std::vector<std::string>& cublaslt_files() {
  static const std::vector<std::string> files = {"libcublasLt.so.13", "libcublasLt.so.12"};
  return files;
}

const Expected<Cublaslt>& Cublaslt::of_process() {
  static const Expected<Cublaslt> cublaslt = open(search_path_of_process(cublaslt_files()));
  return cublaslt;
}

Expected<Cublaslt> Cublaslt::open(const SearchPath& search) {
  Cublaslt cublaslt;
  KILN_ASSIGN_OR_RETURN(cublaslt.m_library, Library::open(search, cublaslt_files()));
  auto api = std::make_shared<CublasltFunctions>();
  KILN_RETURN_IF_ERROR(resolve(cublaslt.m_library, *api));
  cublaslt.m_version = api->version();
  cublaslt.m_api = std::move(api);
  return cublaslt;
}

std::string Cublaslt::identity() const {
  return fmt::format("cublaslt {} {}", version_text(m_version), m_library.build_id());
}

Status Cublaslt::status_of(CublasltResult result, std::string_view call) const {
  if (result == 0) return {};
  return error(code_of(result), "cublaslt: {}: {} ({})", call, m_api->result_name(result), result);
}

}  // namespace kiln::cuda
