#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "backends/cuda/libraries.h"
#include "base/expected.h"

/// cuDNN's graph interface, opened at run time. Declared here as far as it is used: since 9.0 it keeps its names and
/// numbers (cudnn_graph.h).
namespace kiln::cuda {

using CudnnResult = int;
using CudnnHandle = void*;
using CudnnDescriptor = void*;

/// Every function is there, or the library was refused.
struct CudnnFunctions {
  size_t (*version)() = nullptr;
  const char* (*error_string)(CudnnResult) = nullptr;
  void (*last_error)(char*, size_t) = nullptr;
  CudnnResult (*create)(CudnnHandle*) = nullptr;
  CudnnResult (*destroy)(CudnnHandle) = nullptr;
  CudnnResult (*set_stream)(CudnnHandle, void*) = nullptr;
  CudnnResult (*create_descriptor)(int, CudnnDescriptor*) = nullptr;
  CudnnResult (*destroy_descriptor)(CudnnDescriptor) = nullptr;
  CudnnResult (*finalise)(CudnnDescriptor) = nullptr;
  CudnnResult (*set_attribute)(CudnnDescriptor, int, int, int64_t, const void*) = nullptr;
  CudnnResult (*get_attribute)(CudnnDescriptor, int, int, int64_t, int64_t*, void*) = nullptr;
  CudnnResult (*execute)(CudnnHandle, CudnnDescriptor, CudnnDescriptor) = nullptr;
};

/// What a file of the library is called.
inline constexpr std::string_view k_cudnn_file = "libcudnn_graph.so.9";

/// Threading: any thread at once. Ownership: the library stays open for good.
class Cudnn {
 public:
  /// Opened once a process. The one that the process has already is taken, be it a framework's: two would share their parts.
  /// Errors: not_found, failed_precondition.
  static const Expected<Cudnn>& of_process();
  /// Errors: not_found without a library, failed_precondition where it lacks something, cuBLASLt among it, or is older than 9.16.
  static Expected<Cudnn> open(const SearchPath& search);

  const CudnnFunctions& api() const { return *m_api; }
  const Library& library() const { return m_library; }
  uint64_t version() const { return m_version; }  // 91900
  /// "cudnn 9.19.0 65be0db342ad51a0": whatever can change a plan.
  std::string identity() const;

  /// "cudnn: finalising a plan: CUDNN_STATUS_… (3007): why", with the code that fits: failed_precondition where the library,
  /// driver or device is another than a plan was made for, unimplemented where it has no way to compute what was asked.
  Status status_of(CudnnResult result, std::string_view call) const;

 private:
  Library m_library;
  std::shared_ptr<const CudnnFunctions> m_api;
  uint64_t m_version = 0;
};

}  // namespace kiln::cuda
