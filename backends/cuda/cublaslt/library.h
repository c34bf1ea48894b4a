#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/libraries.h"
#include "base/expected.h"

/// cuBLASLt, opened at run time. Declared here as far as it is used: its C interface keeps its names and numbers
/// (cublasLt.h), and what is used here is the same in 12 and 13.
namespace kiln::cuda {

using CublasltResult = int;
using CublasltHandle = void*;
using CublasltObject = void*;  // an operation, a layout or a preference

/// cublasLtMatmulAlgo_t: plain data of the library.
struct CublasltAlgorithm {
  uint64_t words[8];
};

/// cublasLtMatmulHeuristicResult_t.
struct CublasltProposal {
  CublasltAlgorithm algorithm;
  size_t workspace_bytes;
  CublasltResult state;  // 0, or why the rest means nothing
  float waves;
  int reserved[4];
};

/// Every function is there, or the library was refused.
struct CublasltFunctions {
  using Set = CublasltResult(CublasltObject, int, const void*, size_t);
  using Get = CublasltResult(const CublasltAlgorithm*, int, void*, size_t, size_t*);

  size_t (*version)() = nullptr;
  const char* (*result_name)(CublasltResult) = nullptr;
  CublasltResult (*create)(CublasltHandle*) = nullptr;
  CublasltResult (*destroy)(CublasltHandle) = nullptr;
  CublasltResult (*create_operation)(CublasltObject*, int, int) = nullptr;
  CublasltResult (*destroy_operation)(CublasltObject) = nullptr;
  Set* set_operation = nullptr;
  CublasltResult (*create_layout)(CublasltObject*, int, uint64_t, uint64_t, int64_t) = nullptr;
  CublasltResult (*destroy_layout)(CublasltObject) = nullptr;
  Set* set_layout = nullptr;
  CublasltResult (*create_preference)(CublasltObject*) = nullptr;
  CublasltResult (*destroy_preference)(CublasltObject) = nullptr;
  Set* set_preference = nullptr;
  CublasltResult (*propose)(CublasltHandle, CublasltObject, CublasltObject, CublasltObject, CublasltObject,
                            CublasltObject, CublasltObject, int, CublasltProposal*, int*) = nullptr;
  Get* capability = nullptr;
  Get* choice = nullptr;
  CublasltResult (*multiply)(CublasltHandle, CublasltObject, const void*, const void*, CublasltObject, const void*,
                             CublasltObject, const void*, const void*, CublasltObject, void*, CublasltObject,
                             const CublasltAlgorithm*, void*, size_t, void*) = nullptr;
};

/// What files of the library are called, best first.
const std::vector<std::string>& cublaslt_files();

/// Threading: any thread at once. Ownership: the library stays open for good.
class Cublaslt {
 public:
  /// Opened once a process. The one that the process has already is taken, be it a framework's: it is large.
  /// Errors: not_found, failed_precondition.
  static const Expected<Cublaslt>& of_process();
  /// Errors: not_found without a library, failed_precondition where it lacks something.
  static Expected<Cublaslt> open(const SearchPath& search);

  const CublasltFunctions& api() const { return *m_api; }
  const Library& library() const { return m_library; }
  uint64_t version() const { return m_version; }  // 131000
  /// "cublaslt 13.10.0 65be0db342ad51a0": whatever can change what is proposed.
  std::string identity() const;

  /// "cublaslt: a layout: CUBLAS_STATUS_INVALID_VALUE (7)", with the code that fits: unimplemented where the library has no way
  /// to compute what was asked, failed_precondition where the device is none of its.
  Status status_of(CublasltResult result, std::string_view call) const;

 private:
  Library m_library;
  std::shared_ptr<const CublasltFunctions> m_api;
  uint64_t m_version = 0;
};

}  // namespace kiln::cuda
