#include "backends/cuda/compile/cudnn_graph.h"

#include <span>
#include <utility>

namespace kiln::cuda {
namespace {

constexpr int64_t k_tensor_alignment_bytes = 16;

/// cudnnConvolutionMode_t.
enum class CudnnConvolutionMode : int { convolution = 0, cross_correlation = 1 };

/// cudnnDataType_t.
enum class CudnnType : int { f32 = 0, f16 = 2, i32 = 4, bf16 = 9, boolean = 11 };

CudnnType type_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CudnnType::f16;
    case DType::bf16:
      return CudnnType::bf16;
    case DType::i32:
      return CudnnType::i32;
    case DType::boolean:
      return CudnnType::boolean;
    default:
      return CudnnType::f32;
  }
}

std::vector<int64_t> dense(const std::vector<int64_t>& extents) {
  std::vector<int64_t> strides(extents.size(), 1);
  for (size_t d = extents.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * extents[d];
  return strides;
}

}  // namespace

std::vector<int64_t> exchanged(std::vector<int64_t> values) {
  std::swap(values[values.size() - 2], values.back());
  return values;
}

CudnnDescriptor CudnnGraph::keep(CudnnObject object, std::string_view what) {
  if (m_status.ok()) m_status = object.finalise(what);
  m_objects.push_back(std::move(object));
  return m_objects.back().get();
}

CudnnTensor CudnnGraph::tensor(int64_t number, DType dtype, std::vector<int64_t> extents, std::vector<int64_t> strides,
                               bool is_virtual, bool is_by_value) {
  CudnnObject object(m_cudnn, CudnnKind::tensor);
  object.set(CudnnAttribute::tensor_number, CudnnValue::int64, number);
  object.set(CudnnAttribute::tensor_type, CudnnValue::data_type, type_of(dtype));
  object.set(CudnnAttribute::tensor_extents, CudnnValue::int64, std::span<const int64_t>(extents));
  object.set(CudnnAttribute::tensor_strides, CudnnValue::int64, std::span<const int64_t>(strides));
  object.set(CudnnAttribute::tensor_alignment_bytes, CudnnValue::int64, k_tensor_alignment_bytes);
  object.set(CudnnAttribute::tensor_is_virtual, CudnnValue::boolean, is_virtual);
  object.set(CudnnAttribute::tensor_is_by_value, CudnnValue::boolean, is_by_value);
  const CudnnDescriptor descriptor = keep(std::move(object), "a tensor");
  return {std::move(extents), std::move(strides), descriptor};
}

CudnnTensor CudnnGraph::memory(int64_t number, DType dtype, std::vector<int64_t> extents,
                               std::vector<int64_t> strides) {
  return tensor(number, dtype, std::move(extents), std::move(strides), false, false);
}

CudnnTensor CudnnGraph::constant(int64_t number) {
  return tensor(number, DType::f32, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}

CudnnTensor CudnnGraph::between(DType dtype, std::vector<int64_t> extents) {
  std::vector<int64_t> strides = dense(extents);
  return tensor(m_next_number++, dtype, std::move(extents), std::move(strides), true, false);
}

CudnnTensor CudnnGraph::product(const CudnnTensor& a, const CudnnTensor& b, DType dtype) {
  CudnnTensor to = between(dtype, {a.extents[0], a.extents[1], a.extents[2], b.extents[3]});
  product(a, b, to);
  return to;
}

void CudnnGraph::product(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& to) {
  CudnnObject config(m_cudnn, CudnnKind::matmul);
  config.set(CudnnAttribute::matmul_type, CudnnValue::data_type, CudnnType::f32);
  const CudnnDescriptor kept = keep(std::move(config), "a product's type");
  CudnnObject operation(m_cudnn, CudnnKind::matmul_operation);
  operation.set(CudnnAttribute::matmul_operation_a, CudnnValue::descriptor, a.object);
  operation.set(CudnnAttribute::matmul_operation_b, CudnnValue::descriptor, b.object);
  operation.set(CudnnAttribute::matmul_operation_c, CudnnValue::descriptor, to.object);
  operation.set(CudnnAttribute::matmul_operation_config, CudnnValue::descriptor, kept);
  m_operations.push_back(keep(std::move(operation), "a product"));
}

CudnnDescriptor CudnnGraph::kept(const CudnnWindows& windows) {
  const std::vector<int64_t> none(windows.strides.size(), 0);
  CudnnObject config(m_cudnn, CudnnKind::convolution);
  config.set(CudnnAttribute::convolution_type, CudnnValue::data_type, CudnnType::f32);
  config.set(CudnnAttribute::convolution_mode, CudnnValue::convolution_mode,
             windows.is_mirrored ? CudnnConvolutionMode::convolution : CudnnConvolutionMode::cross_correlation);
  config.set(CudnnAttribute::convolution_dims, CudnnValue::int64, static_cast<int64_t>(none.size()));
  for (const auto& [attribute, numbers] : {std::pair(CudnnAttribute::convolution_strides, &windows.strides),
                                           std::pair(CudnnAttribute::convolution_dilations, &windows.dilations),
                                           std::pair(CudnnAttribute::convolution_paddings_before, &none),
                                           std::pair(CudnnAttribute::convolution_paddings_behind, &none)}) {
    config.set(attribute, CudnnValue::int64, std::span<const int64_t>(*numbers));
  }
  return keep(std::move(config), "a convolution's windows");
}

void CudnnGraph::operate(const WindowsOperation& names, const CudnnWindows& windows, const CudnnTensor& image,
                         const CudnnTensor& filters, const CudnnTensor& output) {
  CudnnObject operation(m_cudnn, names.kind);
  operation.set(names.alpha, CudnnValue::f32, 1.0F);
  operation.set(names.beta, CudnnValue::f32, 0.0F);
  operation.set(names.config, CudnnValue::descriptor, kept(windows));
  operation.set(names.filters, CudnnValue::descriptor, filters.object);
  operation.set(names.image, CudnnValue::descriptor, image.object);
  operation.set(names.output, CudnnValue::descriptor, output.object);
  m_operations.push_back(keep(std::move(operation), names.what));
}

void CudnnGraph::convolution(const CudnnWindows& windows, const CudnnTensor& image, const CudnnTensor& filters,
                             const CudnnTensor& to) {
  using enum CudnnAttribute;
  operate({CudnnKind::convolution_operation, convolution_operation_alpha, convolution_operation_beta,
           convolution_operation_config, convolution_operation_filters, convolution_operation_image,
           convolution_operation_output, "a convolution"},
          windows, image, filters, to);
}

CudnnTensor CudnnGraph::convolution_like(const CudnnWindows& windows, const CudnnTensor& image,
                                         const CudnnTensor& filters, const CudnnTensor& like) {
  CudnnTensor to = tensor(m_next_number++, DType::f32, like.extents, like.strides, true, false);
  convolution(windows, image, filters, to);
  return to;
}

void CudnnGraph::filter_gradient(const CudnnWindows& windows, const CudnnTensor& image, const CudnnTensor& output,
                                 const CudnnTensor& to) {
  using enum CudnnAttribute;
  operate({CudnnKind::filter_gradient_operation, filter_gradient_operation_alpha, filter_gradient_operation_beta,
           filter_gradient_operation_config, filter_gradient_operation_filters, filter_gradient_operation_image,
           filter_gradient_operation_output, "a gradient of filters"},
          windows, image, to, output);
}

void CudnnGraph::operate(CudnnMode mode, DType type, int64_t axis, const CudnnTensor& x, const CudnnTensor* b,
                         const CudnnTensor* t, const CudnnTensor& y) {
  CudnnObject config(m_cudnn, CudnnKind::pointwise);
  config.set(CudnnAttribute::pointwise_mode, CudnnValue::pointwise_mode, mode);
  config.set(CudnnAttribute::pointwise_type, CudnnValue::data_type, type_of(type));
  if (mode == CudnnMode::index) config.set(CudnnAttribute::pointwise_axis, CudnnValue::int64, axis);
  const CudnnDescriptor kept = keep(std::move(config), "a pointwise op's mode");
  CudnnObject operation(m_cudnn, CudnnKind::pointwise_operation);
  operation.set(CudnnAttribute::pointwise_operation_config, CudnnValue::descriptor, kept);
  operation.set(CudnnAttribute::pointwise_operation_x, CudnnValue::descriptor, x.object);
  if (b != nullptr) operation.set(CudnnAttribute::pointwise_operation_b, CudnnValue::descriptor, b->object);
  if (t != nullptr) operation.set(CudnnAttribute::pointwise_operation_t, CudnnValue::descriptor, t->object);
  operation.set(CudnnAttribute::pointwise_operation_y, CudnnValue::descriptor, y.object);
  m_operations.push_back(keep(std::move(operation), "a pointwise op"));
}

CudnnTensor CudnnGraph::pointwise(CudnnMode mode, const CudnnTensor& a, const CudnnTensor& b, DType dtype) {
  CudnnTensor to = between(dtype, a.extents);
  pointwise(mode, a, b, to);
  return to;
}

CudnnTensor CudnnGraph::pointwise(CudnnMode mode, const CudnnTensor& a) {
  CudnnTensor to = between(DType::f32, a.extents);
  operate(mode, DType::f32, 0, a, nullptr, nullptr, to);
  return to;
}

void CudnnGraph::pointwise(CudnnMode mode, const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& to) {
  operate(mode, DType::f32, 0, a, &b, nullptr, to);
}

CudnnTensor CudnnGraph::where_not_below(const CudnnTensor& a, const CudnnTensor& b, int64_t axis, int64_t other) {
  const CudnnTensor place = between(DType::i32, a.extents), bound = between(DType::i32, a.extents);
  operate(CudnnMode::index, DType::i32, axis, a, nullptr, nullptr, place);
  operate(CudnnMode::index, DType::i32, other, a, nullptr, nullptr, bound);
  const CudnnTensor holds = between(DType::boolean, a.extents);
  operate(CudnnMode::not_below, DType::boolean, 0, place, &bound, nullptr, holds);
  CudnnTensor to = between(DType::f32, a.extents);
  operate(CudnnMode::select, DType::f32, 0, a, &b, &holds, to);
  return to;
}

CudnnTensor CudnnGraph::reduced(CudnnSum sum, const CudnnTensor& a) {
  std::vector<int64_t> extents = a.extents;
  extents.back() = 1;
  CudnnTensor to = between(DType::f32, std::move(extents));
  reduced(sum, a, to);
  return to;
}

void CudnnGraph::reduced(CudnnSum sum, const CudnnTensor& a, const CudnnTensor& to) {
  CudnnObject config(m_cudnn, CudnnKind::reduction);
  config.set(CudnnAttribute::reduction_operator, CudnnValue::reduction_operator, sum);
  config.set(CudnnAttribute::reduction_type, CudnnValue::data_type, CudnnType::f32);
  const CudnnDescriptor kept = keep(std::move(config), "a reduction's type");
  CudnnObject operation(m_cudnn, CudnnKind::reduction_operation);
  operation.set(CudnnAttribute::reduction_operation_x, CudnnValue::descriptor, a.object);
  operation.set(CudnnAttribute::reduction_operation_y, CudnnValue::descriptor, to.object);
  operation.set(CudnnAttribute::reduction_operation_config, CudnnValue::descriptor, kept);
  m_operations.push_back(keep(std::move(operation), "a reduction"));
}

CudnnTensor CudnnGraph::transposed(const CudnnTensor& a, DType dtype) {
  CudnnTensor to = tensor(m_next_number++, dtype, exchanged(a.extents), exchanged(a.strides), true, false);
  CudnnObject operation(m_cudnn, CudnnKind::reshape_operation);
  operation.set(CudnnAttribute::reshape_operation_x, CudnnValue::descriptor, a.object);
  operation.set(CudnnAttribute::reshape_operation_y, CudnnValue::descriptor, to.object);
  m_operations.push_back(keep(std::move(operation), "a transposition"));
  return to;
}

Expected<CudnnObject> CudnnGraph::finalise() {
  KILN_RETURN_IF_ERROR(m_status);
  CudnnObject graph(m_cudnn, CudnnKind::graph);
  graph.set(CudnnAttribute::graph_operations, CudnnValue::descriptor, std::span<const CudnnDescriptor>(m_operations));
  KILN_RETURN_IF_ERROR(graph.finalise("a graph"));
  return graph;
}

}  // namespace kiln::cuda
