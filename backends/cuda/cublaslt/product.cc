#include "backends/cuda/cublaslt/product.h"

#include <array>
#include <vector>

namespace kiln::cuda {
namespace {

// cublasLt.h, as far as it is used: attributes of operations, layouts, preferences and algorithms, and their values.
constexpr int k_operation_transposes_a = 3, k_operation_transposes_b = 4, k_operation_epilogue = 7;
constexpr int k_operation_bias = 8, k_operation_bias_batch_stride = 10, k_operation_bias_type = 26;
constexpr int k_operation_aux = 11, k_operation_aux_column_stride = 12, k_operation_aux_batch_stride = 13;
constexpr int k_layout_batches = 5, k_layout_batch_stride = 6;
constexpr int k_preference_workspace_bytes = 1, k_preference_reductions = 3, k_preference_numerics = 12;
constexpr std::array k_preference_alignments = {5, 6, 7, 8};  // of A, B, C and D
constexpr int k_choice_reduction = 3, k_capability_numerics = 15;
constexpr uint32_t k_epilogue_none = 1, k_epilogue_bias = 4, k_epilogue_gelu = 32, k_epilogue_gelu_gradient = 64;
constexpr uint32_t k_epilogue_aux = 128;       // GELU's input, written or read
constexpr uint32_t k_reduced_as_computed = 2;  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
// CUBLASLT_NUMERICAL_IMPL_FLAGS_…
constexpr uint64_t k_by_fma = 0x01, k_by_dmma = 0x08, k_by_any = 0xff;
constexpr uint64_t k_sums_f32 = 0x02 << 8, k_sums_f64 = 0x04 << 8;
constexpr uint64_t k_of_f32 = 0x08 << 16, k_of_f64 = 0x10 << 16, k_of_any = 0xff << 16;
constexpr int k_compute_f32 = 68, k_compute_f64 = 70;  // cublasComputeType_t
constexpr int k_most_proposals = 8;
constexpr uint64_t k_buffer_alignment = 16;

/// Of every address that a launch may have: that of a buffer, further on by `offset` and by multiples of `stride`.
uint64_t alignment_of(uint64_t offset_bytes, uint64_t stride_bytes) {
  const uint64_t bits = k_buffer_alignment | offset_bytes | stride_bytes;
  return bits & (~bits + 1);
}

uint64_t alignment_of(const MatrixRecord& matrix) {
  return alignment_of(matrix.offset_bytes, static_cast<uint64_t>(matrix.batch_stride) * size_of(matrix.dtype));
}

/// Stands for every address so aligned: proposals depend on that alone.
const void* address_with(uint64_t alignment) {
  return reinterpret_cast<const void*>(alignment);  // NOLINT(performance-no-int-to-ptr): nobody follows it
}

uint32_t epilogue_of(const ProductRecord& record) {
  using Activation = ProductRecord::Activation;
  uint32_t epilogue = record.biases.empty() ? 0 : k_epilogue_bias;
  if (record.activation == Activation::gelu) epilogue |= k_epilogue_gelu;
  if (record.activation == Activation::gelu_gradient) epilogue |= k_epilogue_gelu_gradient;
  if (!record.gelu_inputs.empty()) epilogue |= k_epilogue_aux;
  return epilogue == 0 ? k_epilogue_none : epilogue;
}

/// A factor of the operation, of the type that sums are of.
struct Scalar {
  explicit Scalar(double value) : wide(value), narrow(static_cast<float>(value)) {}
  const void* of(DType operands) const {
    return operands == DType::f64 ? static_cast<const void*>(&wide) : static_cast<const void*>(&narrow);
  }
  double wide;
  float narrow;
};

/// Which implementations may compute with operands of the dtype: halves multiply exactly in all, f32 must not become TF32 or
/// parts of bf16.
uint64_t numerics_of(DType operands) {
  switch (operands) {
    case DType::f32:
      return k_by_fma | k_sums_f32 | k_of_f32;
    case DType::f64:
      return k_by_fma | k_by_dmma | k_sums_f64 | k_of_f64;
    default:
      return k_by_any | k_sums_f32 | k_of_any;
  }
}

/// Sums are as wide as the result, or f32 of halves.
bool is_computed(const ProductRecord& record) {
  const DType operands = record.left.dtype, result = record.result.dtype;
  return operands == record.right.dtype && cublaslt_type(operands) >= 0 &&
         (result == operands || (result == DType::f32 && is_half(operands)));
}

}  // namespace

int cublaslt_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0;
    case DType::f64:
      return 1;
    case DType::f16:
      return 2;
    case DType::bf16:
      return 14;
    default:
      return -1;
  }
}

CublasltProduct::CublasltProduct(const Cublaslt& cublaslt, const ProductRecord& record)
    : m_cublaslt(&cublaslt),
      m_record(record),
      m_operation(nullptr, cublaslt.api().destroy_operation),
      m_left(nullptr, cublaslt.api().destroy_layout),
      m_right(nullptr, cublaslt.api().destroy_layout),
      m_addend(nullptr, cublaslt.api().destroy_layout),
      m_result(nullptr, cublaslt.api().destroy_layout),
      m_preference(nullptr, cublaslt.api().destroy_preference) {}

Expected<CublasltProduct> CublasltProduct::make(const Cublaslt& cublaslt, const ProductRecord& record) {
  if (!is_computed(record)) {
    return error(StatusCode::unimplemented, "cublaslt: no product of {} and {} to {}", to_string(record.left.dtype),
                 to_string(record.right.dtype), to_string(record.result.dtype));
  }
  CublasltProduct product(cublaslt, record);
  KILN_RETURN_IF_ERROR(product.make_operation().with_context("an operation"));
  KILN_ASSIGN_OR_RETURN(product.m_left, product.layout_of(record.left));
  KILN_ASSIGN_OR_RETURN(product.m_right, product.layout_of(record.right));
  KILN_ASSIGN_OR_RETURN(product.m_result, product.layout_of(record.result));
  for (const auto& [addend, factor] : record.addends) {
    const bool lies_alike =
        addend.column_stride == record.result.column_stride && addend.batch_stride == record.result.batch_stride;
    if (lies_alike) continue;
    KILN_ASSIGN_OR_RETURN(product.m_addend, product.layout_of(addend));
  }
  KILN_RETURN_IF_ERROR(product.make_preference().with_context("a preference"));
  return product;
}

Status CublasltProduct::make_operation() {
  const CublasltFunctions& api = m_cublaslt->api();
  CublasltObject operation = nullptr;
  const bool is_wide = m_record.left.dtype == DType::f64;
  KILN_RETURN_IF_ERROR(m_cublaslt->status_of(api.create_operation(&operation, is_wide ? k_compute_f64 : k_compute_f32,
                                                                  cublaslt_type(is_wide ? DType::f64 : DType::f32)),
                                             "cublasLtMatmulDescCreate"));
  m_operation.reset(operation);
  KILN_RETURN_IF_ERROR(set(k_operation_transposes_a, int32_t{m_record.left.is_transposed}));
  KILN_RETURN_IF_ERROR(set(k_operation_transposes_b, int32_t{m_record.right.is_transposed}));
  KILN_RETURN_IF_ERROR(set(k_operation_epilogue, epilogue_of(m_record)));
  KILN_RETURN_IF_ERROR(add_bias());
  return add_gelu_input();
}

Status CublasltProduct::add_bias() const {
  for (const ProductRecord::Bias& bias : m_record.biases) {
    KILN_RETURN_IF_ERROR(set(k_operation_bias_type, int32_t{cublaslt_type(m_record.result.dtype)}));
    if (m_record.batches > 1) KILN_RETURN_IF_ERROR(set(k_operation_bias_batch_stride, bias.batch_stride));
    const uint64_t stride_bytes = static_cast<uint64_t>(bias.batch_stride) * size_of(m_record.result.dtype);
    KILN_RETURN_IF_ERROR(set(k_operation_bias, address_with(alignment_of(bias.offset_bytes, stride_bytes))));
  }
  return {};
}

Status CublasltProduct::add_gelu_input() const {
  for (const MatrixRecord& input : m_record.gelu_inputs) {
    KILN_RETURN_IF_ERROR(set(k_operation_aux_column_stride, input.column_stride));
    if (m_record.batches > 1) KILN_RETURN_IF_ERROR(set(k_operation_aux_batch_stride, input.batch_stride));
    KILN_RETURN_IF_ERROR(set(k_operation_aux, address_with(alignment_of(input))));
  }
  return {};
}

template <typename T>
Status CublasltProduct::set(int attribute, T value) const {
  return m_cublaslt->status_of(
      m_cublaslt->api().set_operation(m_operation.get(), attribute, static_cast<const void*>(&value), sizeof value),
      fmt::format("attribute {}", attribute));
}

Expected<CublasltProduct::Object> CublasltProduct::layout_of(const MatrixRecord& matrix) const {
  const CublasltFunctions& api = m_cublaslt->api();
  CublasltObject layout = nullptr;
  KILN_RETURN_IF_ERROR(m_cublaslt->status_of(
      api.create_layout(&layout, cublaslt_type(matrix.dtype), matrix.rows, matrix.columns, matrix.column_stride),
      "a layout"));
  Object owner(layout, api.destroy_layout);
  const auto batches = static_cast<int32_t>(m_record.batches);
  KILN_RETURN_IF_ERROR(
      m_cublaslt->status_of(api.set_layout(layout, k_layout_batches, &batches, sizeof batches), "a layout's batches"));
  KILN_RETURN_IF_ERROR(m_cublaslt->status_of(
      api.set_layout(layout, k_layout_batch_stride, &matrix.batch_stride, sizeof matrix.batch_stride),
      "a layout's batch stride"));
  return owner;
}

Status CublasltProduct::make_preference() {
  const CublasltFunctions& api = m_cublaslt->api();
  CublasltObject preference = nullptr;
  KILN_RETURN_IF_ERROR(m_cublaslt->status_of(api.create_preference(&preference), "cublasLtMatmulPreferenceCreate"));
  m_preference.reset(preference);
  const auto set = [&](int attribute, auto value) {
    return m_cublaslt->status_of(api.set_preference(preference, attribute, &value, sizeof value),
                                 fmt::format("attribute {}", attribute));
  };
  KILN_RETURN_IF_ERROR(set(k_preference_workspace_bytes, m_record.workspace_bytes));
  KILN_RETURN_IF_ERROR(set(k_preference_reductions, k_reduced_as_computed));
  KILN_RETURN_IF_ERROR(set(k_preference_numerics, numerics_of(m_record.left.dtype)));
  const MatrixRecord& addend = m_record.addends.empty() ? m_record.result : m_record.addends.front().matrix;
  const std::array<const MatrixRecord*, 4> matrices = {&m_record.left, &m_record.right, &addend, &m_record.result};
  for (size_t i = 0; i < matrices.size(); ++i)
    KILN_RETURN_IF_ERROR(set(k_preference_alignments[i], static_cast<uint32_t>(alignment_of(*matrices[i]))));
  return {};
}

/// The library is not asked to be right about its own filters.
bool CublasltProduct::allows(const CublasltProposal& proposal) const {
  const CublasltFunctions& api = m_cublaslt->api();
  uint32_t reduction = 0;
  uint64_t numerics = 0;
  size_t written = 0;
  if (proposal.state != 0 || proposal.workspace_bytes > m_record.workspace_bytes) return false;
  if (api.choice(&proposal.algorithm, k_choice_reduction, &reduction, sizeof reduction, &written) != 0) return false;
  if (api.capability(&proposal.algorithm, k_capability_numerics, &numerics, sizeof numerics, &written) != 0)
    return false;
  return (reduction & ~k_reduced_as_computed) == 0 && (numerics & ~numerics_of(m_record.left.dtype)) == 0;
}

Expected<CublasltProposal> CublasltProduct::propose(CublasltHandle handle) const {
  std::array<CublasltProposal, k_most_proposals> proposals{};
  int count = 0;
  KILN_RETURN_IF_ERROR(m_cublaslt->status_of(
      m_cublaslt->api().propose(handle, m_operation.get(), m_left.get(), m_right.get(), addend_layout().get(),
                                m_result.get(), m_preference.get(), k_most_proposals, proposals.data(), &count),
      "proposing algorithms"));
  uint32_t place = 0;
  for (size_t i = 0; i < proposals.size() && std::cmp_less(i, count); ++i) {
    if (allows(proposals[i]) && place++ == m_record.place) return proposals[i];
  }
  return error(StatusCode::unimplemented, "cublaslt: {} algorithms are proposed, none at place {}", place,
               m_record.place + 1);
}

Status CublasltProduct::launch(CublasltHandle handle, const CublasltProposal& proposal, const ProductAddresses& at,
                               void* workspace, void* stream) const {
  if (!m_record.biases.empty()) KILN_RETURN_IF_ERROR(set(k_operation_bias, at.bias));
  if (!m_record.gelu_inputs.empty()) KILN_RETURN_IF_ERROR(set(k_operation_aux, at.gelu_input));
  const DType operands = m_record.left.dtype;
  const bool is_added = !m_record.addends.empty();
  const Scalar factor(m_record.factor), addend_factor(is_added ? m_record.addends.front().factor : 0);
  return m_cublaslt->status_of(
      m_cublaslt->api().multiply(handle, m_operation.get(), factor.of(operands), at.left, m_left.get(), at.right,
                                 m_right.get(), addend_factor.of(operands), is_added ? at.addend : at.result,
                                 addend_layout().get(), at.result, m_result.get(), &proposal.algorithm, workspace,
                                 proposal.workspace_bytes, stream),
      "cublasLtMatmul");
}

}  // namespace kiln::cuda
