// Whether the suite beside these tests runs what it is about: products that the library computes go there.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/conformance/check_kernel.h"
#include "tests/conformance/gemm_case.h"

namespace kiln::conformance {
namespace {

/// How many products the library was given to check the spec.
uint64_t products_of(const GemmCase& c, CheckOptions options = {}) {
  std::mt19937_64 random{7};
  options.tolerance_factor = 16;
  const BackendUnderTest backend = backends_under_test().front();
  const auto check = [&] { EXPECT_EQ(check_kernel(backend, gemm(c), random, options), ""); };
  check();  // it is opened once it is needed
  void* const library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(library, nullptr);
  if (library == nullptr) return 0;
  const auto& count = *static_cast<std::atomic<uint64_t>*>(dlsym(library, "stand_in_products"));
  const uint64_t before = count;
  check();
  return count - before;
}

TEST(CudaProducts, go_to_the_library_by_both_of_its_algorithms) {
  EXPECT_EQ(products_of({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16}), 2u);
  EXPECT_EQ(products_of({.m = 40, .n = 72, .k = 64, .b_transposed = true, .with_columns_bias = true}), 2u);
  EXPECT_EQ(products_of({.batch = 2, .m = 24, .n = 40, .k = 64, .dtype = DType::f16, .with_gelu = true}), 2u);
  EXPECT_EQ(products_of({.m = 40, .n = 24, .k = 56, .dtype = DType::bf16, .c_transposed = true, .padding = 3}), 2u);
  EXPECT_EQ(products_of({.m = 24, .n = 16, .k = 32, .dtype = DType::f64}), 2u);
  EXPECT_EQ(products_of({.m = 40, .n = 72, .k = 64, .factor = 0.25, .with_residual = true}), 2u);
  EXPECT_EQ(products_of({.m = 24, .n = 16, .k = 32, .dtype = DType::f64, .factor = 0.3, .with_residual = true}), 2u);
  EXPECT_EQ(products_of({.m = 40, .n = 72, .k = 64, .dtype = DType::f16, .with_gelu_input = true}), 2u);
  EXPECT_EQ(products_of({.batch = 2, .m = 24, .n = 40, .k = 64, .dtype = DType::bf16, .with_gelu_gradient = true}), 2u);
}

TEST(CudaProducts, that_are_not_the_librarys_or_lie_off_their_alignment_are_kernels) {
  EXPECT_EQ(products_of({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .with_bias = true}), 0u);
  EXPECT_EQ(products_of({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16}, {.off_by_an_element = true}), 0u);
}

}  // namespace
}  // namespace kiln::conformance
