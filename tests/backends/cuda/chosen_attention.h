#pragma once

#include "tests/backends/cuda/chosen_loops.h"
#include "tests/conformance/attention_case.h"

namespace kiln::cuda {

/// Both passes of every dtype and depth that matters, causal and not, with shared keys, scores' expressions, few queries.
inline std::vector<NamedSpec> chosen_attention() {
  using conformance::AttentionBuilder;
  using conformance::AttentionCase;
  std::vector<NamedSpec> specs;
  const auto add = [&](const std::string& name, AttentionCase c) {
    specs.push_back({"attention_" + name, AttentionBuilder(c).forward()});
    specs.push_back({"attention_backward_" + name, AttentionBuilder(c).backward()});
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::string suffix = "_" + std::string(to_string(dtype));
    for (const int64_t depth : {64, 128, 256}) {
      add("causal_" + std::to_string(depth) + suffix, {.heads = 16,
                                                       .kv_heads = 16,
                                                       .q_len = 1024,
                                                       .k_len = 1024,
                                                       .head_dim = depth,
                                                       .causal = true,
                                                       .dtype = dtype,
                                                       .interleaved = true});
    }
    add("shared_keys" + suffix,
        {.batch = 2, .heads = 32, .kv_heads = 8, .q_len = 500, .k_len = 777, .head_dim = 128, .dtype = dtype});
    add("window" + suffix, {.heads = 8,
                            .kv_heads = 8,
                            .q_len = 2048,
                            .k_len = 2048,
                            .head_dim = 64,
                            .causal = true,
                            .dtype = dtype,
                            .window = 256});
    add("bias" + suffix,
        {.heads = 12, .kv_heads = 12, .q_len = 197, .k_len = 197, .head_dim = 64, .dtype = dtype, .bias = true});
    add("value_depth" + suffix, {.heads = 16,
                                 .kv_heads = 16,
                                 .q_len = 512,
                                 .k_len = 512,
                                 .head_dim = 192,
                                 .value_dim = 128,
                                 .causal = true,
                                 .dtype = dtype});
    add("few_queries" + suffix,
        {.batch = 4, .heads = 32, .kv_heads = 8, .q_len = 1, .k_len = 2049, .head_dim = 128, .dtype = dtype});
    add("few_queries_deep" + suffix,
        {.heads = 32, .kv_heads = 8, .q_len = 16, .k_len = 8192, .head_dim = 256, .causal = true, .dtype = dtype});
    add("few_queries_window" + suffix,
        {.heads = 8, .kv_heads = 8, .q_len = 16, .k_len = 4096, .head_dim = 96, .dtype = dtype, .window = 1000});
  }
  add("f64", {.heads = 2, .kv_heads = 2, .q_len = 100, .k_len = 100, .head_dim = 256, .dtype = DType::f64});
  return specs;
}

}  // namespace kiln::cuda
