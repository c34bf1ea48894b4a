// Plans of convolutions by the real cuDNN, where it is installed, made and read without a device. That what they compute is right
// is for a machine that has one.
#include "backends/cuda/compile/cudnn_convolution.h"

#include <gtest/gtest.h>

#include <set>

#include "backends/cuda/compile/backend.h"
#include "tests/backends/cuda/chosen_loops.h"
#include "tests/backends/cuda/cudnn_plans.h"
#include "tests/conformance/convolution_case.h"

namespace kiln::cuda {
namespace {

using conformance::ConvolutionCase;
using conformance::ConvolutionGraph;
using conformance::ConvolutionResult;

constexpr ConvolutionResult k_results[] = {ConvolutionResult::output, ConvolutionResult::input_gradient,
                                           ConvolutionResult::filter_gradient};

/// As ResNets, segmentation, speech and video have them.
std::vector<ConvolutionCase> layers() {
  return {
      {.name = "block", .images = 8, .channels = 64, .filters = 64, .extents = {56, 56}, .padding = {1, 1}},
      {.name = "half_block",
       .images = 8,
       .channels = 64,
       .filters = 64,
       .extents = {56, 56},
       .padding = {1, 1},
       .dtype = DType::f16},
      {.name = "late_block", .images = 16, .channels = 512, .filters = 512, .extents = {7, 7}, .padding = {1, 1}},
      {.name = "stem",
       .images = 8,
       .channels = 3,
       .filters = 64,
       .extents = {224, 224},
       .kernel = {7, 7},
       .stride = {2, 2},
       .padding = {3, 3}},
      {.name = "downsampling",
       .images = 8,
       .channels = 64,
       .filters = 128,
       .extents = {56, 56},
       .stride = {2, 2},
       .padding = {1, 1}},
      {.name = "dilation",
       .images = 2,
       .channels = 128,
       .filters = 128,
       .extents = {64, 64},
       .padding = {4, 4},
       .dilation = {4, 4}},
      {.name = "groups",
       .images = 8,
       .channels = 128,
       .filters = 128,
       .extents = {56, 56},
       .padding = {1, 1},
       .groups = 4},
      {.name = "speech",
       .images = 4,
       .channels = 80,
       .filters = 384,
       .extents = {1500},
       .kernel = {3},
       .padding = {1},
       .dtype = DType::f16},
      {.name = "video", .images = 1, .channels = 32, .filters = 64, .extents = {8, 28, 28}, .kernel = {3, 3, 3}},
      {.name = "channels_last",
       .images = 8,
       .channels = 64,
       .filters = 64,
       .extents = {56, 56},
       .padding = {1, 1},
       .channels_last = true},
      {.name = "single_precision",
       .images = 8,
       .channels = 64,
       .filters = 64,
       .extents = {56, 56},
       .padding = {1, 1},
       .dtype = DType::f32},
      {.name = "odd",
       .images = 3,
       .channels = 13,
       .filters = 29,
       .extents = {31, 45},
       .kernel = {5, 3},
       .padding = {2, 0},
       .dtype = DType::f32},
      {.name = "bias",
       .images = 8,
       .channels = 64,
       .filters = 96,
       .extents = {28, 28},
       .padding = {1, 1},
       .with_bias = true},
  };
}

/// Its products that see windows: of some of the phases of a gradient with strides none does.
std::vector<KernelSpec> products_of(const ConvolutionCase& layer, ConvolutionResult result) {
  std::vector<KernelSpec> products = ConvolutionGraph(layer, result).products();
  std::erase_if(products, [](const KernelSpec& spec) { return std::get<GemmSpec>(spec.kernel).b_pieces.rows.empty(); });
  return products;
}

class CudnnConvolutions : public CudnnPlansTest {
 protected:
  static void come_back(ConvolutionResult result) {
    for (const ConvolutionCase& layer : layers()) {
      SCOPED_TRACE(layer.name);
      const std::vector<KernelSpec> products = products_of(layer, result);
      ASSERT_FALSE(products.empty());
      for (const KernelSpec& spec : products) {
        ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
        ASSERT_NE(cudnn_for(spec, target()), nullptr) << kernel_name(spec);
        const auto plan = cudnn_plan(spec, {}, target());
        expect_read_again(plan);
        RecordProperty(layer.name, std::to_string(plan->engine));
      }
    }
  }
};

TEST_F(CudnnConvolutions, have_plans_that_are_made_and_read_again) { come_back(ConvolutionResult::output); }
TEST_F(CudnnConvolutions, have_gradients_of_images_that_are_made_and_read_again) {
  come_back(ConvolutionResult::input_gradient);
}
TEST_F(CudnnConvolutions, have_gradients_of_filters_that_are_made_and_read_again) {
  come_back(ConvolutionResult::filter_gradient);
}

/// Also those that are proposed last.
TEST_F(CudnnConvolutions, have_several_plans) {
  for (const ConvolutionResult result : k_results) {
    const KernelSpec spec = products_of(layers().front(), result).front();
    std::set<std::string> texts;
    for (uint32_t place = 0; place < cudnn_convolution_schedules().size(); ++place) {
      const auto plan = cudnn_plan(spec, {place}, target());
      ASSERT_TRUE(plan.ok()) << plan.status().to_string();
      texts.insert(plan->text);
    }
    EXPECT_EQ(texts.size(), cudnn_convolution_schedules().size());
    EXPECT_EQ(cudnn_plan(spec, {1000}, target()).status().code(), StatusCode::unimplemented);
  }
}

TEST_F(CudnnConvolutions, are_the_first_candidates) {
  const CudaCompileBackend backend;
  const Target on{"cuda", "sm_90a"};
  for (const ConvolutionResult result : k_results) {
    const KernelSpec spec = products_of(layers().front(), result).front();
    const auto candidates = default_candidates(backend, spec, on);
    ASSERT_GE(candidates.size(), 5u);
    for (size_t place = 0; place < 4; ++place) {
      EXPECT_EQ(candidates[place].description, "cudnn choice " + std::to_string(place + 1));
    }
    EXPECT_NE(backend.toolchain_of(spec, on).find(Cudnn::of_process()->identity()), std::string::npos);
  }
}

TEST_F(CudnnConvolutions, are_none_of_what_graphs_do_not_say) {
  const KernelSpec good = products_of(layers().front(), ConvolutionResult::output).front();
  const auto is_claimed = [&](auto change) {
    KernelSpec spec = good;
    change(spec, std::get<GemmSpec>(spec.kernel));
    return cudnn_for(spec, target()) != nullptr;
  };
  EXPECT_TRUE(is_claimed([](KernelSpec&, GemmSpec&) {}));
  EXPECT_EQ(cudnn_for(good, *find_cuda_target("sm_80")), nullptr);
  ConvolutionCase wide = layers().front();
  wide.dtype = DType::f64;
  EXPECT_EQ(cudnn_for(products_of(wide, ConvolutionResult::output).front(), target()), nullptr);
  // Another result than the sum, or one of another dtype; operands off the pieces that plans take; a result over an operand.
  EXPECT_FALSE(is_claimed([](KernelSpec&, GemmSpec& gemm) {
    gemm.epilogue.exprs.push_back({ScalarOp::neg, gemm.dtype, {gemm.stores.front().value, k_no_expr, k_no_expr}});
    gemm.stores.front().value = static_cast<ExprId>(gemm.epilogue.exprs.size() - 1);
  }));
  EXPECT_FALSE(is_claimed([](KernelSpec& spec, GemmSpec& gemm) {
    spec.buffers[gemm.epilogue.accesses.front().buffer].dtype = DType::f32;
    gemm.stores.front().value = gemm.epilogue.exprs[gemm.stores.front().value].operands[0];
  }));
  EXPECT_FALSE(is_claimed([](KernelSpec&, GemmSpec& gemm) { gemm.b.accesses.front().offset = 1; }));
  EXPECT_TRUE(is_claimed([](KernelSpec&, GemmSpec& gemm) { gemm.b.accesses.front().offset = 8; }));
  EXPECT_FALSE(is_claimed(
      [](KernelSpec&, GemmSpec& gemm) { gemm.epilogue.accesses.front().buffer = gemm.b.accesses.front().buffer; }));
}

}  // namespace
}  // namespace kiln::cuda
