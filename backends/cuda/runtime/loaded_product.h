#pragma once

#include <memory>
#include <mutex>

#include "backends/cuda/cublaslt/product.h"
#include "backends/cuda/runtime/library_call.h"

namespace kiln::cuda {

/// A product of cuBLASLt on a device, with the algorithm that the library proposes there.
class LoadedProduct final : public LibraryCall {
 public:
  /// Errors: failed_precondition for another version of the library; unimplemented where it proposes too few algorithms.
  static Expected<std::unique_ptr<LibraryCall>> load(std::shared_ptr<const DeviceContext> context,
                                                     const Cublaslt& cublaslt, const ProductRecord& record);
  ~LoadedProduct() override;
  LoadedProduct(const LoadedProduct&) = delete;
  LoadedProduct& operator=(const LoadedProduct&) = delete;

  bool takes(void* const* buffers) const override;
  Status launch(Stream stream, void* const* buffers, void* workspace) const override;

 private:
  LoadedProduct(std::shared_ptr<const DeviceContext> context, const Cublaslt& cublaslt, const ProductRecord& record,
                CublasltProduct product)
      : m_context(std::move(context)), m_cublaslt(cublaslt), m_record(record), m_product(std::move(product)) {}

  const std::shared_ptr<const DeviceContext> m_context;
  const Cublaslt& m_cublaslt;
  const ProductRecord m_record;
  const CublasltProduct m_product;
  CublasltHandle m_handle = nullptr;
  CublasltProposal m_proposal{};
  mutable std::mutex m_mutex;  // of the operation, which has addresses
};

}  // namespace kiln::cuda
