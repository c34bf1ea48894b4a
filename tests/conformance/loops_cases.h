#pragma once

#include "tests/conformance/loops_builder.h"

/// Kernels that several suites and benchmarks look at. Stored as `dtype`, computed in its accumulator.
namespace kiln::conformance {

inline KernelSpec row_softmax(DType dtype, int64_t rows, int64_t columns) {
  LoopsBuilder b({rows, columns}, 1);
  const ExprId x = b.cast(b.input(dtype, {columns, 1}), accumulator_of(dtype));
  const uint32_t maximum = b.reduce(Combiner::maximum, x);
  b.next_stage();
  const ExprId power = b.op(ScalarOp::exp, b.op(ScalarOp::sub, x, b.reduced(maximum)));
  const uint32_t sum = b.reduce(Combiner::sum, power);
  b.next_stage();
  b.output(b.cast(b.op(ScalarOp::div, power, b.reduced(sum)), dtype), {columns, 1});
  return b.build();
}

inline KernelSpec column_sums(DType dtype, int64_t rows, int64_t columns) {
  LoopsBuilder b({columns, rows}, 1);
  const uint32_t sum = b.reduce(Combiner::sum, b.cast(b.input(dtype, {1, columns}), accumulator_of(dtype)));
  b.next_stage();
  b.output(b.cast(b.reduced(sum), dtype), {1, 0});
  return b.build(/*last_is_per_row=*/true);
}

}  // namespace kiln::conformance
