#pragma once

#include <cstdint>
#include <vector>

#include "frontend/ops/element_evaluator.h"

namespace kiln {

/// The elements of a convolution's result and of its gradients in f64, straight from the definition: each is the product of
/// a row and a column, as of matrices. Internal to frontend/ops.
///
///   convolution: out[n, f, o] = Σ_(c, k) weight[f, c, k] * x[n, c of f's group, o * stride + k * dilation - padding]
///
/// where what lies outside of x is 0; the gradients are sums of the same products over other letters.
enum class ConvolutionResult : uint8_t { out, input_gradient, weight_gradient };

double convolution_element(ConvolutionResult which, ElementEvaluator& e, const Graph& graph, NodeId id, int64_t index);
void convolution_elements(ConvolutionResult which, ElementEvaluator& e, const Graph& graph, NodeId id,
                          std::span<const int64_t> indices, std::span<double> out);

}  // namespace kiln
