#include "backends/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kiln {
namespace {

constexpr float k_poison = std::numeric_limits<float>::quiet_NaN();

ScalarNode leaf(ScalarOp op, DType dtype, uint32_t slot = 0) {
  return {op, dtype, {k_no_expr, k_no_expr, k_no_expr}, slot};
}
ScalarNode unary(ScalarOp op, ExprId a) { return {op, DType::f32, {a, k_no_expr, k_no_expr}}; }
ScalarNode binary(ScalarOp op, ExprId a, ExprId b) { return {op, DType::f32, {a, b, k_no_expr}}; }

TEST(Reference, SoftmaxRunsItsThreeStagesRowByRow) {
  LoopsSpec loops;
  loops.extents = {2, 3};
  loops.parallel_rank = 1;
  loops.body.accesses = {{0, 0, {3, 1}, {}}, {1, 0, {3, 1}, {}}};
  loops.body.exprs = {
      leaf(ScalarOp::load, DType::f32), leaf(ScalarOp::reduced, DType::f32, 0), binary(ScalarOp::sub, 0, 1),
      unary(ScalarOp::exp, 2),          leaf(ScalarOp::reduced, DType::f32, 1), binary(ScalarOp::div, 3, 4)};
  loops.reductions = {{Combiner::maximum, 0}, {Combiner::sum, 3}};
  loops.stages = {{false, {0}, {}}, {false, {1}, {}}, {false, {}, {{5, 1, StoreMode::assign}}}};
  const KernelSpec spec{{{DType::f32, 6, BufferRole::input}, {DType::f32, 6, BufferRole::output}}, loops};
  float in[6] = {0, 1, 2, -5, -5, -5}, out[6];
  std::fill(out, out + 6, k_poison);
  void* buffers[] = {in, out};
  ASSERT_TRUE(run_reference(spec, buffers).ok());
  const double sum = 1 + std::exp(1) + std::exp(2);
  EXPECT_FLOAT_EQ(out[0], static_cast<float>(1 / sum));
  EXPECT_FLOAT_EQ(out[2], static_cast<float>(std::exp(2) / sum));
  EXPECT_FLOAT_EQ(out[4], 1.0F / 3);
}

TEST(Reference, ScatterAddsRowsInOrderAndReportsABadIndex) {
  LoopsSpec loops;  // for each column: for each row: out[index[row], column] += in[row, column]
  loops.extents = {2, 3};
  loops.parallel_rank = 1;
  loops.body.accesses = {{0, 0, {1, 2}, {}}, {1, 0, {0, 1}, {}}, {2, 0, {1, 0}, {{1, 2, 4}}}};
  loops.body.exprs = {leaf(ScalarOp::load, DType::f32, 0), leaf(ScalarOp::load, DType::i64, 1)};
  loops.stages = {{false, {}, {{0, 2, StoreMode::add}}}};
  const KernelSpec spec{
      {{DType::f32, 6, BufferRole::input}, {DType::i64, 3, BufferRole::input}, {DType::f32, 8, BufferRole::inout}},
      loops};
  float in[6] = {1, 2, 3, 4, 5, 6}, out[8] = {};
  int64_t index[3] = {3, 0, 3};
  void* buffers[] = {in, index, out};
  ASSERT_TRUE(run_reference(spec, buffers).ok());
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[7], 8);
  index[1] = 4;
  EXPECT_EQ(run_reference(spec, buffers).code(), StatusCode::out_of_range);
  index[1] = -1;
  EXPECT_EQ(run_reference(spec, buffers).code(), StatusCode::out_of_range);
}

TEST(Reference, SortKeepsTheOrderOfEqualElementsAndPutsNaNAboveAll) {
  SortSpec sort{{2, 4}, false, {0, 0, {4, 1}, {}}, {1, 0, {4, 1}, {}}};
  KernelSpec spec{{{DType::f32, 8, BufferRole::input}, {DType::i64, 8, BufferRole::output}}, sort};
  float in[8] = {2, k_poison, -1, 2, 0, -0.0F, std::numeric_limits<float>::infinity(), k_poison};
  int64_t order[8];
  void* buffers[] = {in, order};
  ASSERT_TRUE(run_reference(spec, buffers).ok());
  EXPECT_EQ(std::vector(order, order + 8), (std::vector<int64_t>{2, 0, 3, 1, 0, 1, 2, 3}));
  std::get<SortSpec>(spec.kernel).descending = true;
  ASSERT_TRUE(run_reference(spec, buffers).ok());
  EXPECT_EQ(std::vector(order, order + 8), (std::vector<int64_t>{1, 0, 3, 2, 3, 2, 0, 1}));
  std::get<SortSpec>(spec.kernel).x.strides = {4, 2};
  EXPECT_EQ(run_reference(spec, buffers).code(), StatusCode::invalid_argument);
}

TEST(Reference, GemmAppliesItsEpilogueToTheAccumulator) {
  GemmSpec gemm;
  gemm.batch = {2};
  gemm.m = 1, gemm.n = 2, gemm.k = 2;
  gemm.a.accesses = {{0, 0, {2, 2, 1}, {}}};
  gemm.b.accesses = {{1, 0, {0, 1, 2}, {}}};  // transposed, shared by the batch
  gemm.a.exprs = gemm.b.exprs = {leaf(ScalarOp::load, DType::f32)};
  gemm.a_value = gemm.b_value = 0;
  gemm.epilogue.accesses = {{2, 0, {0, 0, 1}, {}}, {3, 0, {2, 2, 1}, {}}};
  gemm.epilogue.exprs = {leaf(ScalarOp::accumulator, DType::f32), leaf(ScalarOp::load, DType::f32),
                         binary(ScalarOp::add, 0, 1)};
  gemm.stores = {{2, 1, StoreMode::assign}};
  const KernelSpec spec{{{DType::f32, 4, BufferRole::input},
                         {DType::f32, 4, BufferRole::input},
                         {DType::f32, 2, BufferRole::input},
                         {DType::f32, 4, BufferRole::output}},
                        gemm};
  float a[4] = {1, 2, 3, 4}, b[4] = {10, 1, -1, 2}, bias[2] = {100, 200}, c[4];
  std::fill(c, c + 4, k_poison);
  void* buffers[] = {a, b, bias, c};
  ASSERT_TRUE(run_reference(spec, buffers).ok());
  EXPECT_EQ(c[0], 100 + 1 * 10 + 2 * 1);
  EXPECT_EQ(c[1], 200 + 1 * -1 + 2 * 2);
  EXPECT_EQ(c[3], 200 + 3 * -1 + 4 * 2);
}

class AttentionReference : public testing::Test {
 protected:
  static constexpr int64_t k_heads = 2, k_len = 3, k_dim = 2;
  static constexpr size_t k_count = k_heads * k_len * k_dim;

  static Access tensor(uint32_t buffer) { return {buffer, 0, {0, k_len * k_dim, k_dim, 1}, {}}; }

  void SetUp() override {
    attention = {.batch = 1,
                 .heads = k_heads,
                 .kv_heads = k_heads,
                 .q_len = k_len,
                 .k_len = k_len,
                 .head_dim = k_dim,
                 .value_dim = k_dim,
                 .dtype = DType::f64,
                 .scale = 0.7,
                 .causal = true};
    attention.q = tensor(0), attention.k = tensor(1), attention.v = tensor(2), attention.out = tensor(3);
    attention.lse = {4, 0, {0, k_len, 1}, {}};
    for (size_t i = 0; i < k_count; ++i) {
      q[i] = std::sin(1.0 + static_cast<double>(i));
      k[i] = std::cos(3.0 * static_cast<double>(i));
      v[i] = std::sin(5.0 * static_cast<double>(i));
      grad[i] = std::cos(7.0 * static_cast<double>(i));
    }
  }

  static BufferSpec buffer(size_t count, BufferRole role) { return {DType::f64, static_cast<int64_t>(count), role}; }

  double loss() {
    const KernelSpec spec{
        {buffer(k_count, BufferRole::input), buffer(k_count, BufferRole::input), buffer(k_count, BufferRole::input),
         buffer(k_count, BufferRole::output), buffer(k_heads * k_len, BufferRole::output)},
        attention};
    void* buffers[] = {q, k, v, out, lse};
    EXPECT_TRUE(run_reference(spec, buffers).ok());
    double total = 0;
    for (size_t i = 0; i < k_count; ++i) total += out[i] * grad[i];
    return total;
  }

  AttentionSpec attention;
  double q[k_count], k[k_count], v[k_count], out[k_count], grad[k_count], lse[k_heads * k_len];
};

TEST_F(AttentionReference, ACausalFirstQuerySeesTheFirstKeyOnly) {
  loss();
  EXPECT_DOUBLE_EQ(out[0], v[0]);
  EXPECT_DOUBLE_EQ(out[1], v[1]);
}

TEST_F(AttentionReference, ARowWithoutKeysGivesZeros) {
  attention.causal_offset = -1;
  loss();
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(lse[0], -INFINITY);
}

TEST_F(AttentionReference, TheBackwardIsTheDerivativeOfTheForward) {
  loss();
  AttentionBackwardSpec backward{attention, tensor(5), tensor(6), tensor(7), tensor(8)};
  std::vector<BufferSpec> specs(6, buffer(k_count, BufferRole::input));
  specs[4] = buffer(k_heads * k_len, BufferRole::input);
  specs.insert(specs.end(), 3, buffer(k_count, BufferRole::output));
  double grads[3][k_count];
  void* buffers[] = {q, k, v, out, lse, grad, grads[0], grads[1], grads[2]};
  ASSERT_TRUE(run_reference({specs, backward}, buffers).ok());
  double* operands[] = {q, k, v};
  for (size_t t = 0; t < 3; ++t) {
    for (size_t i = 0; i < k_count; ++i) {
      const double kept = operands[t][i], step = 1e-6;
      operands[t][i] = kept + step;
      const double above = loss();
      operands[t][i] = kept - step;
      const double below = loss();
      operands[t][i] = kept;
      EXPECT_NEAR(grads[t][i], (above - below) / (2 * step), 1e-8);
    }
  }
}

}  // namespace
}  // namespace kiln
