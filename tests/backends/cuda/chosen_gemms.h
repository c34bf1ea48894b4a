#pragma once

#include "tests/backends/cuda/chosen_loops.h"
#include "tests/conformance/gemm_case.h"

namespace kiln::cuda {

/// Every dtype, every order of the operands, with epilogue and without, with a batch, aligned or not.
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
  return specs;
}

}  // namespace kiln::cuda
