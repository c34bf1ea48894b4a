#pragma once

#include "tests/backends/cuda/chosen_loops.h"
#include "tests/conformance/gemm_case.h"
#include "tests/conformance/windows_case.h"

namespace kiln::cuda {

/// Products of windows: of large images, of small ones together, of gradients of filters, of groups.
inline void add_windows(std::vector<NamedSpec>& specs) {
  using conformance::windows_product;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string name = "gemm_" + std::string(to_string(dtype)) + "_windows";
    specs.push_back(
        {name, windows_product({.images = 8, .channels = 64, .filters = 64, .extents = {58, 58}, .dtype = dtype})});
    specs.push_back({name + "_of_small_images", windows_product({.images = 32,
                                                                 .channels = 256,
                                                                 .filters = 512,
                                                                 .extents = {15, 15},
                                                                 .stride = {2, 2},
                                                                 .dtype = dtype,
                                                                 .images_are_batch = false})});
    specs.push_back({name + "_summed", windows_product({.images = 8,
                                                        .channels = 64,
                                                        .filters = 64,
                                                        .extents = {30, 30},
                                                        .dtype = dtype,
                                                        .images_are_batch = false,
                                                        .sums_positions = true})});
  }
  specs.push_back({"gemm_f16_windows_of_groups", windows_product({.images = 8,
                                                                  .groups = 32,
                                                                  .channels = 4,
                                                                  .filters = 4,
                                                                  .extents = {58, 58},
                                                                  .dtype = DType::f16,
                                                                  .is_mirrored = true})});
  specs.push_back({"gemm_f64_windows", windows_product({.dtype = DType::f64})});
}

/// Every dtype, every order of the operands, with epilogue and without, with a batch, aligned or not; windows.
inline std::vector<NamedSpec> chosen_gemms() {
  using conformance::gemm;
  std::vector<NamedSpec> specs;
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      const std::string name = std::string("gemm_bf16_") + (a ? "t" : "n") + (b ? "t" : "n");
      specs.push_back(
          {name, gemm({.m = 2048, .n = 2304, .k = 768, .dtype = DType::bf16, .a_transposed = a, .b_transposed = b})});
    }
  }
  specs.push_back({"gemm_f16_nt", gemm({.m = 2048, .n = 768, .k = 768, .dtype = DType::f16, .b_transposed = true})});
  specs.push_back(
      {"gemm_bf16_epilogue", gemm({.m = 4096, .n = 3072, .k = 768, .dtype = DType::bf16, .with_bias = true})});
  specs.push_back({"gemm_bf16_batch", gemm({.batch = 12, .m = 512, .n = 64, .k = 512, .dtype = DType::bf16})});
  specs.push_back({"gemm_bf16_odd_rows", gemm({.m = 2048, .n = 768, .k = 1001, .dtype = DType::bf16})});
  specs.push_back({"gemm_bf16_odd_both", gemm({.m = 2048, .n = 1003, .k = 1001, .dtype = DType::bf16})});
  specs.push_back({"gemm_bf16_odd", gemm({.m = 33, .n = 77, .k = 101, .dtype = DType::bf16, .with_bias = true})});
  specs.push_back({"gemm_f32", gemm({.m = 512, .n = 3072, .k = 768, .with_bias = true})});
  specs.push_back({"gemm_f32_tn_odd", gemm({.m = 33, .n = 77, .k = 101, .a_transposed = true})});
  specs.push_back({"gemm_f64", gemm({.m = 128, .n = 128, .k = 100, .dtype = DType::f64})});
  specs.push_back({"gemm_i32", gemm({.m = 65, .n = 70, .k = 33, .dtype = DType::i32})});
  add_windows(specs);
  return specs;
}

}  // namespace kiln::cuda
