#include "frontend/kernel/kernel_text.h"

#include <gtest/gtest.h>

namespace kiln {
namespace {

// out[table[i], j] += x[i, j] where i < 3, and y[i] = max_j x[i, j]
KernelSpec kernel() {
  constexpr ExprId k_no = k_no_expr;
  LoopsSpec loops{.extents = {6, 4}, .parallel_rank = 1};
  loops.body.accesses = {{0, 2, {8, 1}, {}}, {1, 0, {1, 0}, {}}, {2, 0, {0, 1}, {{1, 4, 9}}}, {3, 0, {-1, 0}, {}}};
  loops.body.exprs = {{ScalarOp::load, DType::f32, {k_no, k_no, k_no}, 0},
                      {ScalarOp::load, DType::i64, {k_no, k_no, k_no}, 1},
                      {ScalarOp::index, DType::i64, {k_no, k_no, k_no}, 0},
                      {ScalarOp::constant, DType::i64, {k_no, k_no, k_no}, 0, 0, 3},
                      {ScalarOp::lt, DType::boolean, {2, 3, k_no}},
                      {ScalarOp::load, DType::f32, {4, k_no, k_no}, 0},
                      {ScalarOp::reduced, DType::f32, {k_no, k_no, k_no}, 0},
                      {ScalarOp::constant, DType::f32, {k_no, k_no, k_no}, 0, 0.5}};
  loops.reductions = {{Combiner::maximum, 0}};
  loops.stages = {{false, {0}, {{5, 2, StoreMode::add}}}, {true, {}, {{6, 3, StoreMode::assign}}}};
  return {{{DType::f32, 50, BufferRole::input},
           {DType::i64, 6, BufferRole::input},
           {DType::f32, 36, BufferRole::inout},
           {DType::f32, 6, BufferRole::output}},
          loops};
}

TEST(KernelText, SaysBuffersExpressionsAddressesAndStages) {
  EXPECT_EQ(kernel_text(kernel()), R"(loops_f32_6x4_r1_s2
  b0: input f32[50]
  b1: input i64[6]
  b2: inout f32[36]
  b3: output f32[6]
  loops over [6], each point over [4]
    %0: f32 = load b0[8*i0 + i1 + 2]
    %1: i64 = load b1[i0]
    %2: i64 = i0
    %3: i64 = 3
    %4: bool = lt %2 %3
    %5: f32 = load b0[8*i0 + i1 + 2] where %4
    %6: f32 = reduction 0
    %7: f32 = 0.5
    reduction 0: maximum of %0
  stage 0, reductions [0]
    add b2[i1 + 4*%1], %1 < 9 = %5
  stage 1, once a row, reductions []
    store b3[-i0] = %6
)");
}

TEST(KernelText, SaysAProductsOperandsAndEpilogue) {
  GemmSpec gemm{.m = 2, .n = 3, .k = 4};
  gemm.a = {{{ScalarOp::load, DType::f32}}, {{0, 0, {4, 0, 1}, {}}}};
  gemm.b = {{{ScalarOp::load, DType::f32}}, {{1, 0, {3, 1, 0}, {}}}};
  gemm.a_value = gemm.b_value = 0;
  gemm.epilogue = {{{ScalarOp::accumulator, DType::f32}}, {{2, 0, {3, 1}, {}}}};
  gemm.stores = {{0, 0, StoreMode::assign}};
  const KernelSpec spec{
      {{DType::f32, 8, BufferRole::input}, {DType::f32, 12, BufferRole::input}, {DType::f32, 6, BufferRole::output}},
      gemm};
  const std::string text = kernel_text(spec);
  for (const char* line : {"  product of f32: batch [], m 2, n 3, k 4\n", "  a = %0 over [2, 4]\n",
                           "  b = %0 over [4, 3]\n", "    %0: f32 = accumulator\n", "    store b2[3*i0 + i1] = %0\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

}  // namespace
}  // namespace kiln
