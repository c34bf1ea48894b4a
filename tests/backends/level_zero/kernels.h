#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "tests/conformance/attention_case.h"
#include "tests/conformance/gemm_case.h"
#include "tests/conformance/loops_cases.h"
#include "tests/conformance/windows_case.h"

namespace kiln::level_zero {

using conformance::LoopsBuilder;

/// out = x * sigmoid(x)
inline KernelSpec pointwise(DType dtype, int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 2);
  const ExprId x = b.cast(b.input(dtype, {columns, 1}), DType::f32);
  b.output(b.cast(b.op(ScalarOp::mul, x, b.op(ScalarOp::sigmoid, x)), dtype), {columns, 1});
  return b.build();
}

/// Whether elements of the row that an index names are 0.
inline KernelSpec zeros_of_rows(int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 2);
  const ExprId row = b.input(DType::i64, {1, 0});
  const uint32_t table = b.buffer(DType::f32, rows * columns, BufferRole::input);
  const ExprId element = b.load(b.access(table, {0, 1}, 0, {{row, columns, rows}}));
  b.output(b.op(ScalarOp::logical_not, element), {columns, 1});
  return b.build();
}

/// The schedule with other fields, which are its last bytes.
inline Schedule with_fields(Schedule schedule, const std::vector<uint8_t>& fields) {
  std::ranges::copy(fields, schedule.bytes.end() - static_cast<ptrdiff_t>(fields.size()));
  return schedule;
}

struct NamedKernel {
  std::string name;
  KernelSpec spec;
};

/// Both passes: of heads that share keys, of deep ones, of a score that leaves keys out.
inline std::vector<NamedKernel> chosen_attention() {
  using conformance::AttentionBuilder;
  using conformance::AttentionCase;
  const AttentionCase shared{
      .heads = 16, .kv_heads = 4, .q_len = 1000, .k_len = 1000, .head_dim = 64, .causal = true, .dtype = DType::f16};
  AttentionCase deep = shared, window = shared;
  deep.kv_heads = 16, deep.head_dim = 128, deep.dtype = DType::f32;
  window.window = 100, window.interleaved = true, window.dtype = DType::bf16;
  std::vector<NamedKernel> kernels;
  for (const auto& [name, c] : {std::pair("shared", shared), {"deep", deep}, {"window", window}}) {
    kernels.push_back({std::string("attention_") + name, AttentionBuilder(c).forward()});
    kernels.push_back({std::string("attention_backward_") + name, AttentionBuilder(c).backward()});
  }
  for (const int64_t depth : {32, 80}) {
    AttentionCase of_depth = shared;
    of_depth.head_dim = depth;
    kernels.push_back({"attention_of_depth_" + std::to_string(depth), AttentionBuilder(of_depth).forward()});
  }
  return kernels;
}

/// Products of windows: over images, of groups, summed over positions.
inline std::vector<NamedKernel> chosen_windows() {
  using conformance::windows_product;
  using conformance::WindowsCase;
  const WindowsCase image{.images = 8, .channels = 64, .filters = 64, .extents = {58, 58}, .dtype = DType::f16};
  WindowsCase wide = image, groups = image, summed = image;
  wide.dtype = DType::f32;
  groups.groups = 4, groups.stride = {2, 1}, groups.is_mirrored = true, groups.windows_are_a = true;
  summed.dtype = DType::bf16, summed.images_are_batch = false, summed.sums_positions = true;
  return {{"windows_f16", windows_product(image)},
          {"windows_f32", windows_product(wide)},
          {"windows_f16_of_groups", windows_product(groups)},
          {"windows_bf16_summed", windows_product(summed)}};
}

/// The kernels that every release of the families' compilers must take.
inline std::vector<NamedKernel> chosen_kernels() {
  std::vector<NamedKernel> kernels{
      {"pointwise_f32", pointwise(DType::f32, 512, 768)},
      {"pointwise_f16", pointwise(DType::f16, 500, 767)},
      {"softmax_f32", conformance::row_softmax(DType::f32, 512, 768)},
      {"softmax_f16", conformance::row_softmax(DType::f16, 33, 1000)},
      {"column_sums_f32", conformance::column_sums(DType::f32, 512, 768)},
      {"gemm_f32", conformance::gemm({.m = 512, .n = 768, .k = 768, .with_bias = true})},
      {"gemm_f16", conformance::gemm({.m = 500, .n = 767, .k = 300, .dtype = DType::f16, .b_transposed = true})},
      {"gemm_bf16", conformance::gemm({.m = 512, .n = 768, .k = 768, .dtype = DType::bf16, .with_bias = true})},
      {"gemm_f16_large", conformance::gemm({.m = 4096, .n = 4097, .k = 4096, .dtype = DType::f16, .with_bias = true})},
      {"gemm_f16_few_rows",
       conformance::gemm({.m = 17, .n = 300, .k = 1000, .dtype = DType::f16, .a_transposed = true})},
      {"gemm_f32_batched", conformance::gemm({.batch = 3, .m = 18, .n = 35, .k = 20, .a_transposed = true})},
      {"zeros_of_rows", zeros_of_rows(500, 40)},
  };
  for (NamedKernel& kernel : chosen_windows()) kernels.push_back(std::move(kernel));
  for (NamedKernel& kernel : chosen_attention()) kernels.push_back(std::move(kernel));
  return kernels;
}

}  // namespace kiln::level_zero
