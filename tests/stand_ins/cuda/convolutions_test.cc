// Whether the suite beside these tests runs what it is about: convolutions that cuDNN plans go there, by all plans that may be
// chosen.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "tests/conformance/check_kernel.h"
#include "tests/conformance/convolution_case.h"

namespace kiln::conformance {
namespace {

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

constexpr ConvolutionResult k_results[] = {ConvolutionResult::output, ConvolutionResult::input_gradient,
                                           ConvolutionResult::filter_gradient};

/// The product that a case and dtype are.
KernelSpec product_of(ConvolutionCase each, ConvolutionResult result, DType dtype) {
  each.dtype = dtype;
  return ConvolutionGraph(each, result).products().front();
}

TEST(CudaConvolutions, go_to_the_library_by_all_plans_that_sum_in_f32) {
  for (const ConvolutionCase& each : convolution_cases()) {
    const bool is_chosen = each.name == "dilation" || each.name == "groups" || each.name == "channels_last" ||
                           each.name == "one_dim" || each.name == "bias";
    if (!is_chosen) continue;
    for (const ConvolutionResult result : k_results) {
      SCOPED_TRACE(each.name);
      EXPECT_EQ(plans_of(product_of(each, result, DType::f32)), 2u);
    }
  }
}

/// They may go by tensor cores, too.
TEST(CudaConvolutions, of_halves_and_special_values_go_to_the_library) {
  for (const ConvolutionResult result : k_results) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const KernelSpec spec = product_of(convolution_cases().front(), result, dtype);
      EXPECT_EQ(plans_of(spec, {.special_values = true}), 3u);
    }
  }
}

TEST(CudaConvolutions, off_their_alignment_are_kernels) {
  const KernelSpec spec = product_of(convolution_cases().front(), ConvolutionResult::output, DType::bf16);
  EXPECT_EQ(plans_of(spec, {.off_by_an_element = true}), 0u);
}

}  // namespace
}  // namespace kiln::conformance
