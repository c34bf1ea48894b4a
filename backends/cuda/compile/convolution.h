#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln::cuda {

/// A tensor in one of a spec's buffers; offset and strides in elements.
struct ConvolutionTensor {
  uint32_t buffer = 0;
  int64_t offset = 0;
  std::vector<int64_t> extents, strides;
};

/// A convolution, without padding, in as many dims as there are strides, two at least:
///
///     output[i, f, o…] = Σ_c,k… filters[f, c, k…] * image[i, g * C + c, o… * stride… + k… * dilation…]
///
/// where filters see C channels, those of group g = f / (filters of a group).
struct Convolution {
  ConvolutionTensor image;    // [images, channels of all groups, what windows reach…]
  ConvolutionTensor filters;  // [filters of all groups, channels of one, kernel…]
  ConvolutionTensor output;   // [images, filters of all groups, positions…]
  std::vector<int64_t> stride, dilation;
  bool is_mirrored = false;  // the filters' last element of the kernel is the one that comes first, along all dims
  /// What is computed are the filters: the sums of image * output over images and positions, a gradient.
  bool is_of_filters = false;
};

/// The convolution that a product of windows is; nothing where it is none. What comes after the product is not looked at, but
/// that it is stored once.
std::optional<Convolution> convolution_of(const KernelSpec& spec);

}  // namespace kiln::cuda
