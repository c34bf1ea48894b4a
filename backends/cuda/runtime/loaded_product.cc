#include "backends/cuda/runtime/loaded_product.h"

#include <algorithm>
#include <array>

namespace kiln::cuda {
namespace {

uint8_t* at(void* const* buffers, uint32_t buffer, uint64_t offset_bytes) {
  return static_cast<uint8_t*>(buffers[buffer]) + offset_bytes;
}

}  // namespace

Expected<std::unique_ptr<LibraryCall>> LoadedProduct::load(std::shared_ptr<const DeviceContext> context,
                                                           const Cublaslt& cublaslt, const ProductRecord& record) {
  if (record.version != cublaslt.version()) {
    return error(StatusCode::failed_precondition, "cublaslt: a product of version {}, this host has {}",
                 version_text(record.version), version_text(cublaslt.version()));
  }
  KILN_ASSIGN_OR_RETURN(CublasltProduct product, CublasltProduct::make(cublaslt, record));
  const ContextScope scope(context->driver(), context->handle());
  KILN_RETURN_IF_ERROR(scope.status());
  std::unique_ptr<LoadedProduct> loaded(new LoadedProduct(std::move(context), cublaslt, record, std::move(product)));
  KILN_RETURN_IF_ERROR(cublaslt.status_of(cublaslt.api().create(&loaded->m_handle), "cublasLtCreate"));
  KILN_ASSIGN_OR_RETURN(loaded->m_proposal, loaded->m_product.propose(loaded->m_handle));
  return std::unique_ptr<LibraryCall>(std::move(loaded));
}

LoadedProduct::~LoadedProduct() {
  const ContextScope scope(m_context->driver(), m_context->handle());
  if (m_handle != nullptr) m_cublaslt.api().destroy(m_handle);
}

bool LoadedProduct::takes(void* const* buffers) const {
  const auto is_taken = [&](uint32_t buffer) { return is_aligned(buffers[buffer]); };
  const std::array matrices = {&m_record.left, &m_record.right, &m_record.result};
  return std::ranges::all_of(matrices, [&](const auto* matrix) { return is_taken(matrix->buffer); }) &&
         std::ranges::all_of(m_record.addends, [&](const auto& addend) { return is_taken(addend.matrix.buffer); }) &&
         std::ranges::all_of(m_record.biases, [&](const auto& bias) { return is_taken(bias.buffer); }) &&
         std::ranges::all_of(m_record.gelu_inputs, [&](const auto& input) { return is_taken(input.buffer); });
}

Status LoadedProduct::launch(Stream stream, void* const* buffers, void* workspace) const {
  const auto of = [&](const MatrixRecord& matrix) { return at(buffers, matrix.buffer, matrix.offset_bytes); };
  ProductAddresses addresses{.left = of(m_record.left), .right = of(m_record.right), .result = of(m_record.result)};
  for (const ProductRecord::Addend& addend : m_record.addends) addresses.addend = of(addend.matrix);
  for (const ProductRecord::Bias& bias : m_record.biases) addresses.bias = at(buffers, bias.buffer, bias.offset_bytes);
  for (const MatrixRecord& input : m_record.gelu_inputs) addresses.gelu_input = of(input);
  const std::scoped_lock lock(m_mutex);
  return m_product.launch(m_handle, m_proposal, addresses, workspace, stream);
}

}  // namespace kiln::cuda
