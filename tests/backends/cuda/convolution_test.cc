// What is read out of products of windows, as loops over images, against what the products are.
#include "backends/cuda/compile/convolution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "backends/reference/body_runner.h"
#include "backends/reference/reference.h"
#include "frontend/kernel/affine.h"
#include "tests/conformance/convolution_case.h"

namespace kiln::cuda {
namespace {

using conformance::convolution_cases;
using conformance::ConvolutionCase;
using conformance::ConvolutionGraph;
using conformance::ConvolutionResult;

using Index = std::vector<int64_t>;
using Memory = std::vector<std::vector<double>>;

/// An element of a tensor in f64.
double& element(Memory& memory, const ConvolutionTensor& tensor, const Index& index) {
  int64_t place = tensor.offset;
  for (size_t d = 0; d < index.size(); ++d) {
    EXPECT_LT(index[d], tensor.extents[d]);
    place += index[d] * tensor.strides[d];
  }
  return memory[tensor.buffer].at(static_cast<size_t>(place));
}

/// What convolution.h says, element by element.
void convolve(const Convolution& c, Memory& memory) {
  const int64_t channels = c.filters.extents[1];
  const int64_t groups = c.image.extents[1] / channels;
  const int64_t filters_of_group = c.filters.extents[0] / groups;
  Index kernel_extents(c.filters.extents.begin() + 2, c.filters.extents.end());
  const ConvolutionTensor& result = c.is_of_filters ? c.filters : c.output;
  Index point(result.extents.size(), 0);
  do {
    element(memory, result, point) = 0;
  } while (next_point(point, result.extents));

  Index output(c.output.extents.size(), 0);
  do {
    Index window(kernel_extents.size() + 1, 0), window_extents{channels};
    window_extents.insert(window_extents.end(), kernel_extents.begin(), kernel_extents.end());
    do {
      Index image{output[0], output[1] / filters_of_group * channels + window[0]}, filter{output[1], window[0]};
      for (size_t d = 0; d < kernel_extents.size(); ++d) {
        image.push_back(output[2 + d] * c.stride[d] + window[1 + d] * c.dilation[d]);
        filter.push_back(c.is_mirrored ? kernel_extents[d] - 1 - window[1 + d] : window[1 + d]);
      }
      if (c.is_of_filters) {
        element(memory, c.filters, filter) += element(memory, c.output, output) * element(memory, c.image, image);
      } else {
        element(memory, c.output, output) += element(memory, c.filters, filter) * element(memory, c.image, image);
      }
    } while (next_point(window, window_extents));
  } while (next_point(output, c.output.extents));
}

Memory random_memory(const KernelSpec& spec) {
  std::mt19937_64 random(19);
  std::normal_distribution<double> normal;
  Memory memory;
  for (const BufferSpec& buffer : spec.buffers) {
    memory.emplace_back(static_cast<size_t>(buffer.elements), std::numeric_limits<double>::quiet_NaN());
    if (buffer.role != BufferRole::input) continue;
    for (double& value : memory.back()) value = normal(random);
  }
  return memory;
}

Memory product_of(const KernelSpec& spec, Memory memory) {
  std::vector<void*> buffers;
  for (auto& buffer : memory) buffers.push_back(buffer.data());
  const Status status = run_reference(spec, buffers);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return memory;
}

class Convolutions : public testing::TestWithParam<ConvolutionCase> {
 protected:
  void check(ConvolutionResult result) {
    ConvolutionCase each = GetParam();
    each.dtype = DType::f64;
    each.with_bias = false;  // comes after the product
    const std::vector<KernelSpec> products = ConvolutionGraph(each, result).products();
    ASSERT_FALSE(products.empty());
    for (const KernelSpec& spec : products) {
      const auto convolution = convolution_of(spec);
      // Some of the phases of a gradient with strides see each pixel through one element of the kernel.
      const bool has_windows = !std::get<GemmSpec>(spec.kernel).b_pieces.rows.empty();
      ASSERT_EQ(convolution.has_value(), has_windows) << kernel_name(spec);
      if (!has_windows) continue;
      EXPECT_EQ(convolution->is_of_filters, result == ConvolutionResult::filter_gradient);
      Memory memory = random_memory(spec);
      const Memory wanted = product_of(spec, memory);
      convolve(*convolution, memory);
      for (size_t buffer = 0; buffer < memory.size(); ++buffer) {
        for (size_t i = 0; i < memory[buffer].size(); ++i) {
          ASSERT_NEAR(memory[buffer][i], wanted[buffer][i], 1e-10) << kernel_name(spec) << " at " << i;
        }
      }
    }
  }
};

TEST_P(Convolutions, are_read_from_products) { check(ConvolutionResult::output); }
TEST_P(Convolutions, are_read_from_gradients_of_images) { check(ConvolutionResult::input_gradient); }
TEST_P(Convolutions, are_read_from_gradients_of_filters) { check(ConvolutionResult::filter_gradient); }

/// The product of the first of the cases, padded images and filters.
KernelSpec padded(DType dtype = DType::f64) {
  ConvolutionCase each = convolution_cases().front();
  each.dtype = dtype;
  return ConvolutionGraph(each, ConvolutionResult::output).products().front();
}

TEST(Convolution, of_images_with_channels_innermost_is_that_of_others_with_other_strides) {
  KernelSpec spec = padded();
  auto& gemm = std::get<GemmSpec>(spec.kernel);
  ASSERT_EQ(gemm.b_pieces.rows, (std::vector<int64_t>{4, 3, 3}));
  Access& windows = gemm.b.accesses.front();
  ASSERT_EQ(windows.strides, (std::vector<int64_t>{1600, 400, 20, 1, 20, 1}));
  windows.strides = {1600, 1, 80, 4, 80, 4};
  ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  const auto convolution = convolution_of(spec);
  ASSERT_TRUE(convolution.has_value());
  EXPECT_EQ(convolution->image.extents, (std::vector<int64_t>{2, 4, 20, 20}));
  EXPECT_EQ(convolution->image.strides, (std::vector<int64_t>{1600, 1, 80, 4}));
  Memory memory = random_memory(spec);
  const Memory wanted = product_of(spec, memory);
  convolve(*convolution, memory);
  for (size_t i = 0; i < memory[2].size(); ++i) ASSERT_NEAR(memory[2][i], wanted[2][i], 1e-10);
}

TEST(Convolution, is_not_what_something_else_than_plain_tensors_is_multiplied_for) {
  const auto is_none = [](auto change) {
    KernelSpec spec = padded();
    change(spec, std::get<GemmSpec>(spec.kernel));
    return !convolution_of(spec).has_value();
  };
  EXPECT_FALSE(is_none([](KernelSpec&, GemmSpec&) {}));
  EXPECT_TRUE(is_none([](KernelSpec&, GemmSpec& gemm) { gemm.b_pieces = {}; }));
  EXPECT_TRUE(is_none([](KernelSpec&, GemmSpec& gemm) { gemm.a.exprs.front().dtype = DType::f32; }));
  EXPECT_TRUE(is_none([](KernelSpec&, GemmSpec& gemm) { gemm.stores.front().mode = StoreMode::add; }));
  EXPECT_TRUE(is_none([](KernelSpec&, GemmSpec& gemm) { gemm.stores.push_back(gemm.stores.front()); }));
  // Filters with gaps, windows of an image that overlaps itself, and one that is turned around.
  EXPECT_TRUE(is_none([](KernelSpec&, GemmSpec& gemm) { gemm.a.accesses.front().strides.back() = 2; }));
  EXPECT_TRUE(is_none([](KernelSpec&, GemmSpec& gemm) { gemm.b.accesses.front().strides[1] = 20; }));
  EXPECT_TRUE(is_none([](KernelSpec&, GemmSpec& gemm) { gemm.b.accesses.front().strides[3] = -1; }));
}

INSTANTIATE_TEST_SUITE_P(, Convolutions, testing::ValuesIn(convolution_cases()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace kiln::cuda
