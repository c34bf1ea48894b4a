#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "frontend/fuse/plan.h"
#include "frontend/infer/builder.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::conformance {

/// A convolution of a model. Of stride, padding and dilation nothing is 1, 0 and 1.
struct ConvolutionCase {
  std::string name;
  int64_t images = 2, channels = 4, filters = 8;
  std::vector<int64_t> extents = {18, 18}, kernel = {3, 3}, stride, padding, dilation;
  int64_t groups = 1;
  DType dtype = DType::bf16;
  bool channels_last = false;
  bool with_bias = false;
};

inline void PrintTo(const ConvolutionCase& each, std::ostream* out) { *out << each.name; }

enum class ConvolutionResult { output, input_gradient, filter_gradient };

/// As the frontend makes kernels of it.
class ConvolutionGraph {
 public:
  ConvolutionGraph(const ConvolutionCase& each, ConvolutionResult result) : m_case(each), m_builder(m_graph) {
    ConvolutionCase& c = m_case;
    const size_t rank = c.kernel.size();
    if (c.stride.empty()) c.stride.assign(rank, 1);
    if (c.padding.empty()) c.padding.assign(rank, 0);
    if (c.dilation.empty()) c.dilation.assign(rank, 1);
    std::vector<int64_t> positions;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t reach = c.dilation[d] * (c.kernel[d] - 1) + 1;
      positions.push_back((c.extents[d] + 2 * c.padding[d] - reach) / c.stride[d] + 1);
    }
    const ValueId image = input(c.images, c.channels, c.extents);
    const ValueId filters = input(c.filters, c.channels / c.groups, c.kernel);
    const ValueId output = input(c.images, c.filters, positions);
    Attributes attributes{{"stride", c.stride}, {"padding", c.padding}, {"dilation", c.dilation}, {"groups", c.groups}};
    ValueId value = k_none;
    if (result == ConvolutionResult::output) {
      value = m_builder.op("convolution", {image, filters}, attributes);
      if (c.with_bias) value = m_builder.add(value, bias(rank));
    } else if (result == ConvolutionResult::input_gradient) {
      attributes.emplace_back("extents", Shape(c.extents.begin(), c.extents.end()));
      value = m_builder.op("convolution_backward_input", {output, filters}, attributes);
    } else {
      attributes.emplace_back("kernel", Shape(c.kernel.begin(), c.kernel.end()));
      value = m_builder.op("convolution_backward_weight", {output, image}, attributes);
    }
    m_graph.set_outputs({value});
  }

  /// Products with an operand in pieces, which windows are. A gradient with respect to images may be of several.
  std::vector<KernelSpec> products() const {
    std::vector<KernelSpec> found;
    const Expected<Plan> plan = m_builder.status().ok() ? fuse(m_graph) : Expected<Plan>(m_builder.status());
    if (!plan.ok()) return found;
    for (const KernelSpec& spec : plan->specs) {
      const auto* gemm = std::get_if<GemmSpec>(&spec.kernel);
      if (gemm != nullptr && !gemm->b_pieces.empty()) found.push_back(spec);
    }
    return found;
  }

 private:
  ValueId input(int64_t outer, int64_t inner, const std::vector<int64_t>& extents) {
    Shape shape{outer, inner};
    shape.insert(shape.end(), extents.begin(), extents.end());
    if (!m_case.channels_last) return m_graph.add_input({m_case.dtype, shape, {}});
    std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
    std::vector<int64_t> order{0, static_cast<int64_t>(shape.size()) - 1};
    for (size_t d = 1; d + 1 < shape.size(); ++d) order.push_back(static_cast<int64_t>(d));
    return m_builder.permute(m_graph.add_input({m_case.dtype, shape, {}}), order);
  }
  ValueId bias(size_t rank) {
    Shape shape(rank + 1, Dim(1));
    shape.front() = Dim(m_case.filters);
    return m_graph.add_input({m_case.dtype, shape, {}});
  }

  ConvolutionCase m_case;
  Graph m_graph;
  GraphBuilder m_builder;
};

/// As models have them: sizes, strides, dilations, groups, dims and layouts. Tensors are whole multiples of 8 elements.
inline std::vector<ConvolutionCase> convolution_cases() {
  return {
      {.name = "padded", .padding = {1, 1}},
      {.name = "not_padded"},
      {.name = "small_images", .images = 6, .extents = {7, 9}, .padding = {1, 1}},
      {.name = "one_image", .images = 1, .filters = 6},
      {.name = "first_layer",
       .channels = 3,
       .extents = {34, 32},
       .kernel = {7, 7},
       .stride = {2, 2},
       .padding = {3, 3}},
      {.name = "stride", .extents = {19, 17}, .stride = {2, 2}, .padding = {1, 1}},
      {.name = "dilation", .padding = {2, 2}, .dilation = {2, 2}},
      {.name = "groups", .padding = {1, 1}, .groups = 2},
      {.name = "groups_of_one_channel", .images = 4, .filters = 16, .extents = {9, 9}, .groups = 4},
      {.name = "one_dim", .extents = {300}, .kernel = {5}, .padding = {2}},
      {.name = "one_dim_stride", .extents = {300}, .kernel = {5}, .stride = {2}, .padding = {2}},
      {.name = "three_dims", .channels = 2, .extents = {6, 7, 8}, .kernel = {2, 3, 3}, .padding = {0, 1, 1}},
      {.name = "channels_last", .extents = {18, 20}, .padding = {1, 1}, .channels_last = true},
      {.name = "flat_kernel", .extents = {18, 20}, .kernel = {1, 5}, .padding = {0, 2}},
      {.name = "upright_kernel", .extents = {18, 20}, .kernel = {3, 1}, .stride = {2, 1}, .padding = {1, 0}},
      {.name = "patches", .channels = 3, .extents = {32, 32}, .kernel = {4, 4}, .stride = {4, 4}},
      {.name = "one_channel", .channels = 1, .extents = {20, 20}},
      {.name = "bias", .padding = {1, 1}, .with_bias = true},
      {.name = "bias_of_groups", .images = 4, .extents = {9, 9}, .groups = 2, .with_bias = true},
  };
}

}  // namespace kiln::conformance
