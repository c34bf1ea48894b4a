#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/cuda/cudnn/library.h"

namespace kiln::cuda {

/// cudnnBackendDescriptorType_t.
enum class CudnnKind : int {
  pointwise = 0,
  convolution = 1,
  engine = 2,
  engine_choice = 3,
  heuristic = 4,
  plan = 5,
  convolution_operation = 10,
  filter_gradient_operation = 11,
  pointwise_operation = 13,
  graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  matmul_operation = 19,
  reduction = 21,
  reduction_operation = 22,
  reshape_operation = 31,
  device = 38,
};

/// cudnnBackendAttributeName_t.
enum class CudnnAttribute : int {
  pointwise_mode = 0,
  pointwise_type = 1,
  pointwise_axis = 9,
  convolution_type = 100,
  convolution_mode = 101,
  convolution_dilations = 102,
  convolution_strides = 103,
  convolution_paddings_behind = 104,
  convolution_paddings_before = 105,
  convolution_dims = 106,
  heuristic_mode = 200,
  heuristic_graph = 201,
  heuristic_results = 202,
  heuristic_device = 204,
  choice_engine = 300,
  plan_handle = 400,
  plan_choice = 401,
  plan_workspace_bytes = 402,
  plan_text = 405,
  plan_device = 407,
  convolution_operation_alpha = 700,
  convolution_operation_beta = 701,
  convolution_operation_config = 702,
  convolution_operation_filters = 703,
  convolution_operation_image = 704,
  convolution_operation_output = 705,
  filter_gradient_operation_alpha = 712,
  filter_gradient_operation_beta = 713,
  filter_gradient_operation_config = 714,
  filter_gradient_operation_filters = 715,
  filter_gradient_operation_image = 716,
  filter_gradient_operation_output = 717,
  pointwise_operation_config = 750,
  pointwise_operation_x = 751,
  pointwise_operation_b = 752,
  pointwise_operation_y = 753,
  pointwise_operation_t = 758,
  graph_operations = 801,
  tensor_alignment_bytes = 900,
  tensor_type = 901,
  tensor_extents = 902,
  tensor_strides = 903,
  tensor_number = 906,
  tensor_is_virtual = 907,
  tensor_is_by_value = 908,
  pack_numbers = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  engine_index = 1301,
  engine_numerical_notes = 1303,
  matmul_type = 1500,
  matmul_operation_a = 1520,
  matmul_operation_b = 1521,
  matmul_operation_c = 1522,
  matmul_operation_config = 1523,
  reduction_operator = 1600,
  reduction_type = 1601,
  reduction_operation_x = 1610,
  reduction_operation_y = 1611,
  reduction_operation_config = 1612,
  reshape_operation_x = 2200,
  reshape_operation_y = 2201,
  device_index = 2700,
  device_text = 2702,
};

/// cudnnBackendAttributeType_t.
enum class CudnnValue : int {
  handle = 0,
  data_type = 1,
  boolean = 2,
  int64 = 3,
  f32 = 4,
  pointer = 6,
  convolution_mode = 7,
  heuristic_mode = 8,
  numerical_note = 11,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18,
  int32 = 23,
  text = 24,
};

/// One of cuDNN's descriptors: attributes are set, it is finalised, then it is read or used. The first error stays with it,
/// and what comes after does nothing.
///
/// Ownership: owns the descriptor. What it refers to must live as long as it is used.
/// Threading: one thread at a time; finalised, any thread may read it.
class CudnnObject {
 public:
  CudnnObject(const Cudnn& cudnn, CudnnKind kind);
  ~CudnnObject();
  CudnnObject(CudnnObject&& other) noexcept { *this = std::move(other); }
  CudnnObject& operator=(CudnnObject&& other) noexcept;

  CudnnDescriptor get() const { return m_descriptor; }

  template <typename T>
  void set(CudnnAttribute attribute, CudnnValue type, const T& value) {
    set(attribute, type, std::span<const T>(&value, 1));
  }
  template <typename T>
  void set(CudnnAttribute attribute, CudnnValue type, std::span<const T> values) {
    set(attribute, type, static_cast<int64_t>(values.size()), static_cast<const void*>(values.data()));
  }
  void set_text(CudnnAttribute attribute, std::string_view text) {
    set(attribute, CudnnValue::text, static_cast<int64_t>(text.size()), text.data());
  }
  /// Errors: of setting and finalising, naming `what` this is.
  Status finalise(std::string_view what);

  Expected<int64_t> number(CudnnAttribute attribute) const;
  Expected<std::string> text(CudnnAttribute attribute) const;
  /// At most `most` numbers of an enumeration.
  std::vector<int> numbers(CudnnAttribute attribute, CudnnValue type, size_t most) const;
  /// Fills descriptors that were made by the caller; says how many.
  Expected<size_t> read_into(CudnnAttribute attribute, std::span<CudnnObject> objects) const;

 private:
  void set(CudnnAttribute attribute, CudnnValue type, int64_t count, const void* values);

  const Cudnn* m_cudnn = nullptr;
  CudnnDescriptor m_descriptor = nullptr;
  Status m_status;
};

}  // namespace kiln::cuda
