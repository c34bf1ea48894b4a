#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "frontend/ir/dtype.h"

/// A convolution or a gradient of filters, as the stand-in of cuDNN was asked for it, as the text of a plan, and as what is computed.
namespace kiln::stand_in {

using Integers = std::vector<int64_t>;

struct Tensor {
  int64_t number = 0, type = 0, is_virtual = 0;  // type: cudnnDataType_t
  Integers extents, strides;

  DType dtype() const { return type == 0 ? DType::f32 : type == 2 ? DType::f16 : DType::bf16; }
  /// Elements from the first to behind the last one in memory.
  int64_t reach() const;
};

enum Engine : int64_t { k_tensor_cores = 10, k_atomic = 11, k_serial = 12, k_parted = 13 };

/// A graph, and the engine that is to compute it.
struct Work {
  int64_t engine = 0, is_of_filters = 0, is_mirrored = 0;
  Integers strides, dilations, paddings;
  Tensor image, filters, output;
  std::vector<Tensor> bias_and_sum;  // neither or both

  const Tensor& result() const {
    return is_of_filters != 0 ? filters : bias_and_sum.empty() ? output : bias_and_sum[1];
  }
  std::vector<const Tensor*> in_memory() const {
    std::vector<const Tensor*> tensors{&image, &filters, &output};
    for (const Tensor& tensor : bias_and_sum) tensors.push_back(&tensor);
    std::erase_if(tensors, [](const Tensor* tensor) { return tensor->is_virtual != 0; });
    return tensors;
  }
};

std::string text_of(const Work& work);
std::optional<Work> work_of(const std::string& text);

/// Computes it on memory of the tensors, by their numbers. An engine of parts has two sums of f32 in the workspace.
struct Launch {
  Work work;
  std::map<int64_t, void*> memory;
  void* workspace = nullptr;

  void run() const;
};

}  // namespace kiln::stand_in
