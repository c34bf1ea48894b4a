#pragma once

#include <memory>

#include "backends/cuda/cublaslt/library.h"
#include "backends/cuda/launch_record.h"

namespace kiln::cuda {

/// Where the matrices of a launch are. Nobody reads what the record lacks.
struct ProductAddresses {
  const void *left = nullptr, *right = nullptr, *addend = nullptr, *bias = nullptr;
  void *gelu_input = nullptr, *result = nullptr;
};

/// What the library is told of a product: the operation, its matrices, and which algorithms it may propose. Made without a
/// device. Algorithms give equal bits from launch to launch: partial sums are of the type that sums are of, and are added in
/// a step of its own or not at all (cublasLtReductionScheme_t; cuBLAS documentation, "Results Reproducibility", of products
/// in a workspace of the caller's). Those of f32 and f64 multiply just that.
///
/// Ownership: owns its descriptors. The library must live as long.
/// Threading: one thread at a time.
class CublasltProduct {
 public:
  /// Errors: of the library, naming what it refused; unimplemented for dtypes that it multiplies in no such way.
  static Expected<CublasltProduct> make(const Cublaslt& cublaslt, const ProductRecord& record);

  /// The algorithm at the record's place among those that the library proposes on the handle's device.
  /// Errors: unimplemented where it proposes fewer.
  Expected<CublasltProposal> propose(CublasltHandle handle) const;
  /// Puts the product on the stream.
  Status launch(CublasltHandle handle, const CublasltProposal& proposal, const ProductAddresses& at, void* workspace,
                void* stream) const;

 private:
  using Object = std::unique_ptr<void, CublasltResult (*)(CublasltObject)>;

  CublasltProduct(const Cublaslt& cublaslt, const ProductRecord& record);
  Status make_operation();
  Status add_bias() const;
  Status add_gelu_input() const;
  Status make_preference();
  Expected<Object> layout_of(const MatrixRecord& matrix) const;
  template <typename T>
  Status set(int attribute, T value) const;
  /// The addend's, which is the result's where they lie alike.
  const Object& addend_layout() const { return m_addend ? m_addend : m_result; }
  bool allows(const CublasltProposal& proposal) const;

  const Cublaslt* m_cublaslt;
  ProductRecord m_record;
  Object m_operation, m_left, m_right, m_addend, m_result, m_preference;
};

/// What the library calls a dtype that it multiplies (cudaDataType); -1 for all others.
int cublaslt_type(DType dtype);

}  // namespace kiln::cuda
