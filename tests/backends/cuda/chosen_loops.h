#pragma once

#include <string>
#include <vector>

#include "tests/conformance/loops_cases.h"

namespace kiln::cuda {

struct NamedSpec {
  std::string name;
  KernelSpec spec;
};

/// y = gelu(x + bias) + residual over rows of `columns`, stored as `dtype`, computed in f32.
inline KernelSpec bias_gelu_residual(DType dtype, int64_t rows, int64_t columns) {
  conformance::LoopsBuilder b({rows, columns}, 2);
  const auto wide = [&](const std::vector<int64_t>& strides) { return b.cast(b.input(dtype, strides), DType::f32); };
  const ExprId x = b.op(ScalarOp::add, wide({columns, 1}), wide({0, 1}));
  const ExprId cube =
      b.op(ScalarOp::mul, b.op(ScalarOp::mul, x, x), b.op(ScalarOp::mul, x, b.real(DType::f32, 0.044715)));
  const ExprId inner = b.op(ScalarOp::mul, b.op(ScalarOp::add, x, cube), b.real(DType::f32, 0.7978845608028654));
  const ExprId gate = b.op(ScalarOp::add, b.op(ScalarOp::tanh, inner), b.real(DType::f32, 1));
  const ExprId gelu = b.op(ScalarOp::mul, b.op(ScalarOp::mul, x, b.real(DType::f32, 0.5)), gate);
  b.output(b.cast(b.op(ScalarOp::add, gelu, wide({columns, 1})), dtype), {columns, 1});
  return b.build();
}

/// Layer normalisation with weight and bias, and the means as a second output.
inline KernelSpec layer_norm(DType dtype, int64_t rows, int64_t columns) {
  conformance::LoopsBuilder b({rows, columns}, 1);
  const ExprId x = b.cast(b.input(dtype, {columns, 1}), DType::f32);
  const ExprId count = b.real(DType::f32, static_cast<double>(columns));
  const uint32_t sum = b.reduce(Combiner::sum, x);
  b.next_stage();
  const ExprId mean = b.op(ScalarOp::div, b.reduced(sum), count);
  const ExprId centred = b.op(ScalarOp::sub, x, mean);
  const uint32_t squares = b.reduce(Combiner::sum, b.op(ScalarOp::mul, centred, centred));
  b.next_stage();
  const ExprId variance = b.op(ScalarOp::add, b.op(ScalarOp::div, b.reduced(squares), count), b.real(DType::f32, 1e-5));
  const ExprId scaled = b.op(ScalarOp::mul, centred, b.op(ScalarOp::rsqrt, variance));
  const ExprId weighted = b.op(ScalarOp::mul, scaled, b.cast(b.input(dtype, {0, 1}), DType::f32));
  b.output(b.cast(b.op(ScalarOp::add, weighted, b.cast(b.input(dtype, {0, 1}), DType::f32)), dtype), {columns, 1});
  b.next_stage();
  b.output(mean, {1, 0});
  return b.build(true);
}

/// Rows of a table by indices from data; the gradient adds into it, row after row.
inline KernelSpec embedding(DType dtype, int64_t rows, int64_t columns, bool gradient) {
  constexpr int64_t k_table_rows = 1000;
  conformance::LoopsBuilder b(gradient ? std::vector<int64_t>{columns, rows} : std::vector<int64_t>{rows, columns},
                              gradient ? 1 : 2);
  const ExprId index = b.input(DType::i64, gradient ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{1, 0});
  const IndirectTerm term{index, columns, k_table_rows};
  const BufferRole role = gradient ? BufferRole::inout : BufferRole::input;
  const uint32_t table = b.buffer(dtype, k_table_rows * columns, role);
  const uint32_t entry = b.access(table, gradient ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1}, 0, {term});
  if (gradient) {
    b.store(b.input(dtype, {1, columns}), entry, StoreMode::add);
  } else {
    b.output(b.load(entry), {columns, 1});
  }
  return b.build();
}

/// Every form of loops in every dtype that matters to it.
inline std::vector<NamedSpec> chosen_loops() {
  std::vector<NamedSpec> specs;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::string suffix = "_" + std::string(to_string(dtype));
    specs.push_back({"bias_gelu_residual" + suffix, bias_gelu_residual(dtype, 512, 3072)});
    specs.push_back({"softmax" + suffix, conformance::row_softmax(dtype, 4096, 768)});
    specs.push_back({"layer_norm" + suffix, layer_norm(dtype, 512, 768)});
    specs.push_back({"column_sum" + suffix, conformance::column_sums(dtype, 512, 768)});
  }
  specs.push_back({"softmax_of_few_long_rows", conformance::row_softmax(DType::f32, 8, 50257)});
  specs.push_back({"embedding", embedding(DType::f32, 512, 768, false)});
  specs.push_back({"embedding_gradient", embedding(DType::f32, 512, 768, true)});
  return specs;
}

}  // namespace kiln::cuda
