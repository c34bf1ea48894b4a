// Convolutions and their gradients, in the products of windows that the frontend makes of them.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/conformance/check_kernel.h"
#include "tests/conformance/convolution_case.h"

namespace kiln::conformance {
namespace {

class Convolution : public testing::TestWithParam<std::tuple<BackendUnderTest, ConvolutionCase>> {
 protected:
  void check(ConvolutionResult result) {
    const auto& [backend, given] = GetParam();
    std::string skipped;
    for (const DType dtype : {DType::bf16, DType::f32}) {
      ConvolutionCase each = given;
      each.dtype = dtype;
      for (const KernelSpec& spec : ConvolutionGraph(each, result).products()) {
        SCOPED_TRACE(kernel_name(spec));
        // Errors of a sum of k products grow with its root.
        const double terms = static_cast<double>(std::get<GemmSpec>(spec.kernel).k);
        const std::string why = check_kernel(backend, spec, m_random, {.tolerance_factor = 4 + std::sqrt(terms)});
        if (!why.empty()) skipped = why;
        if (HasFailure()) return;
      }
    }
    if (!skipped.empty()) GTEST_SKIP() << skipped;
  }

  std::mt19937_64 m_random{7};
};

TEST_P(Convolution, is_computed) { check(ConvolutionResult::output); }
TEST_P(Convolution, has_a_gradient_of_the_image) { check(ConvolutionResult::input_gradient); }
TEST_P(Convolution, has_a_gradient_of_the_filters) { check(ConvolutionResult::filter_gradient); }

INSTANTIATE_TEST_SUITE_P(
    , Convolution, testing::Combine(testing::ValuesIn(backends_under_test()), testing::ValuesIn(convolution_cases())),
    [](const auto& each) { return name_of(std::get<0>(each.param)) + "_" + std::get<1>(each.param).name; });

}  // namespace
}  // namespace kiln::conformance
