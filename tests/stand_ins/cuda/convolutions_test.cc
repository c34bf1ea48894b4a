// Convolutions and gradients of filters of models over what cuDNN makes of them, from records to results: they are compared with
// the reference, and counted where they run.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "tests/backends/cuda/convolution_case.h"
#include "tests/conformance/check_kernel.h"

namespace kiln::conformance {
namespace {

using cuda::ConvolutionCase;
using cuda::ConvolutionGraph;
using cuda::ConvolutionResult;

/// How many plans the library was given to check the spec.
uint64_t plans_of(const KernelSpec& spec, CheckOptions options = {}) {
  std::mt19937_64 random{7};
  options.tolerance_factor = 4 + std::sqrt(static_cast<double>(std::get<GemmSpec>(spec.kernel).k));
  void* library = dlopen("libcudnn_graph.so.9", RTLD_NOW | RTLD_NOLOAD);
  const auto count = [&] {
    return library == nullptr ? 0
                              : static_cast<std::atomic<uint64_t>*>(dlsym(library, "stand_in_convolutions"))->load();
  };
  const uint64_t before = count();
  EXPECT_EQ(check_kernel(backends_under_test().front(), spec, random, options), "");
  library = dlopen("libcudnn_graph.so.9", RTLD_NOW | RTLD_NOLOAD);  // it is opened once it is needed
  return count() - before;
}

class CudaConvolutions : public testing::TestWithParam<ConvolutionCase> {
 protected:
  static void check(ConvolutionResult result) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      ConvolutionCase each = GetParam();
      each.dtype = dtype;
      for (const KernelSpec& spec : ConvolutionGraph(each, result).products()) {
        SCOPED_TRACE(kernel_name(spec));
        const auto& gemm = std::get<GemmSpec>(spec.kernel);
        if (gemm.b_pieces.rows.empty()) continue;  // no windows
        const bool is_taken = gemm.b.accesses.front().offset * static_cast<int64_t>(size_of(dtype)) % 16 == 0;
        // Halves may go by tensor cores.
        const uint64_t wanted = dtype == DType::f32 ? 2 : 3;
        EXPECT_EQ(plans_of(spec), is_taken ? wanted : 0);
        if (HasFailure()) return;
      }
    }
  }
};

TEST_P(CudaConvolutions, are_computed_by_all_plans) { check(ConvolutionResult::output); }
TEST_P(CudaConvolutions, have_gradients_of_images_by_all_plans) { check(ConvolutionResult::input_gradient); }
TEST_P(CudaConvolutions, have_gradients_of_filters_by_all_plans) { check(ConvolutionResult::filter_gradient); }

INSTANTIATE_TEST_SUITE_P(, CudaConvolutions, testing::ValuesIn(cuda::convolution_cases()),
                         [](const auto& each) { return each.param.name; });

TEST(CudaConvolution, of_f16_and_special_values_is_computed_by_all_plans) {
  for (const ConvolutionResult result : {ConvolutionResult::output, ConvolutionResult::filter_gradient}) {
    ConvolutionCase each = cuda::convolution_cases().front();
    each.dtype = DType::f16;
    const KernelSpec spec = ConvolutionGraph(each, result).products().front();
    EXPECT_EQ(plans_of(spec, {.special_values = true}), 3u);
  }
}

TEST(CudaConvolution, off_its_alignment_is_the_kernels) {
  const KernelSpec spec =
      ConvolutionGraph(cuda::convolution_cases().front(), ConvolutionResult::output).products().front();
  EXPECT_EQ(plans_of(spec, {.off_by_an_element = true}), 0u);
}

}  // namespace
}  // namespace kiln::conformance
