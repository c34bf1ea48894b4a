#include <gtest/gtest.h>

#include "tests/backends/cpu/kernel_check.h"
#include "tests/conformance/loops_builder.h"

namespace kiln::cpu {
namespace {

using conformance::LoopsBuilder;

/// Sums over all dims but the first; strides of the input.
KernelSpec sums(const std::vector<int64_t>& extents, const std::vector<int64_t>& strides) {
  LoopsBuilder b(extents, 1);
  const uint32_t sum = b.reduce(Combiner::sum, b.input(DType::f32, strides));
  b.next_stage();
  std::vector<int64_t> of_row(extents.size(), 0);
  of_row[0] = 1;
  b.output(b.reduced(sum), of_row);
  return b.build(true);
}

TEST(Loops, rounding_of_sums_grows_with_the_root_of_a_run_not_with_their_length) {
  constexpr int64_t run = 128;  // one running sum of 5000 terms rounds 4.5 times as much, of 50257 terms 7 times
  for (const int64_t length : {5000, 50257}) {
    expect_runs(sums({32, length}, {1, 32}), length, run);      // of columns
    expect_runs(sums({32, length}, {length, 1}), length, run);  // of rows
  }
  expect_runs(sums({48, 1700, 3}, {3, 200, 1}), 5100, run);
  expect_runs(sums({48, 3, 1700}, {1, 48, 200}), 5100, run);
  expect_runs(sums({48, 400, 100}, {1, 48, 50}), 40000, run);
  expect_runs(sums({48, 200, 201}, {1, 48, 50}), 40200, run);
}

}  // namespace
}  // namespace kiln::cpu
