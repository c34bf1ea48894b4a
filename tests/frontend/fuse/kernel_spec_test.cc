#include "frontend/kernel/kernel_spec.h"

#include <gtest/gtest.h>

#include "frontend/kernel/gemm_dims.h"
#include "frontend/kernel/overwrites.h"
#include "tests/conformance/windows_case.h"

namespace kiln {
namespace {

ScalarNode load(uint32_t access, ExprId predicate = k_no_expr) {
  return {ScalarOp::load, DType::f32, {predicate, k_no_expr, k_no_expr}, access};
}

// out[i] = exp(in[i]) over 6 x 4 elements.
KernelSpec exp_kernel() {
  LoopsSpec loops;
  loops.extents = {6, 4};
  loops.parallel_rank = 2;
  loops.body.accesses = {{0, 0, {4, 1}, {}}, {1, 0, {4, 1}, {}}};
  loops.body.exprs = {load(0), {ScalarOp::exp, DType::f32, {0, k_no_expr, k_no_expr}}};
  loops.stages = {{false, {}, {{1, 1, StoreMode::assign}}}};
  return {{{DType::f32, 24, BufferRole::input}, {DType::f32, 24, BufferRole::output}}, loops};
}

// out[i] = Σ_j in[i, j]
KernelSpec row_sum_kernel() {
  LoopsSpec loops;
  loops.extents = {6, 4};
  loops.parallel_rank = 1;
  loops.body.accesses = {{0, 0, {4, 1}, {}}, {1, 0, {1, 0}, {}}};
  loops.body.exprs = {load(0), {ScalarOp::reduced, DType::f32}};
  loops.reductions = {{Combiner::sum, 0}};
  loops.stages = {{false, {0}, {}}, {true, {}, {{1, 1, StoreMode::assign}}}};
  return {{{DType::f32, 24, BufferRole::input}, {DType::f32, 6, BufferRole::output}}, loops};
}

LoopsSpec& loops_of(KernelSpec& spec) { return std::get<LoopsSpec>(spec.kernel); }

TEST(KernelSpec, ValidKernelsAreValid) {
  EXPECT_TRUE(validate(exp_kernel()).ok()) << validate(exp_kernel()).to_string();
  EXPECT_TRUE(validate(row_sum_kernel()).ok()) << validate(row_sum_kernel()).to_string();
}

TEST(KernelSpec, AnOutputMayBeWrittenOverWhatIsReadAtTheSamePoints) {
  EXPECT_EQ(overwrites(exp_kernel()), (std::vector<Overwrite>{{1, 0}}));
  EXPECT_TRUE(overwrites(row_sum_kernel()).empty());
  KernelSpec transposed = exp_kernel();
  loops_of(transposed).body.accesses[0].strides = {1, 6};
  EXPECT_TRUE(overwrites(transposed).empty());
  KernelSpec narrower = exp_kernel();
  narrower.buffers[1].dtype = DType::f16;
  EXPECT_TRUE(overwrites(narrower).empty());
  KernelSpec neighbour = exp_kernel();  // also reads the element before
  neighbour.buffers[0].elements = neighbour.buffers[1].elements;
  loops_of(neighbour).body.accesses.push_back({0, 0, {4, 0}, {}});
  EXPECT_TRUE(overwrites(neighbour).empty());
  KernelSpec partly = exp_kernel();  // leaves room between its elements
  partly.buffers[0].elements = partly.buffers[1].elements = 47;
  for (Access& access : loops_of(partly).body.accesses) access.strides = {8, 2};
  EXPECT_TRUE(overwrites(partly).empty());
}

TEST(KernelSpec, AnAccessThatLeavesItsBufferIsRefused) {
  KernelSpec spec = exp_kernel();
  loops_of(spec).body.accesses[0].offset = 1;
  EXPECT_EQ(validate(spec).code(), StatusCode::invalid_argument);
  spec = exp_kernel();
  loops_of(spec).body.accesses[1].strides = {4, -1};
  EXPECT_EQ(validate(spec).code(), StatusCode::invalid_argument);
}

TEST(KernelSpec, NumbersThatOverflowAreRefusedWhereverTheyStand) {
  const auto refused = [](const Access& unused) {
    KernelSpec spec = exp_kernel();
    std::get<LoopsSpec>(spec.kernel).body.accesses.push_back(unused);
    return validate(spec).code() == StatusCode::invalid_argument;
  };
  EXPECT_FALSE(refused({0, 0, {0, 0}, {}}));
  EXPECT_FALSE(refused({0, -1000, {1 << 20, -5}, {}}));
  for (const int64_t far : {INT64_MAX, INT64_MIN, INT64_MAX / 4}) {
    EXPECT_TRUE(refused({0, far, {0, 0}, {}}));
    EXPECT_TRUE(refused({0, 0, {far, 0}, {}}));
    EXPECT_TRUE(refused({0, 0, {0, 0}, {{0, far, far}, {0, far, far}}}));
  }
}

TEST(KernelSpec, APredicateNarrowsWhatALoadReaches) {
  KernelSpec spec = exp_kernel();
  LoopsSpec& loops = loops_of(spec);
  spec.buffers[0].elements = 12;  // only rows 0 to 2
  EXPECT_FALSE(validate(spec).ok());
  loops.body.exprs = {{ScalarOp::index, DType::i64, {k_no_expr, k_no_expr, k_no_expr}, 0},
                      {ScalarOp::constant, DType::i64, {k_no_expr, k_no_expr, k_no_expr}, 0, 0, 3},
                      {ScalarOp::lt, DType::boolean, {0, 1, k_no_expr}},
                      load(0, 2)};
  loops.stages[0].stores[0].value = 3;
  EXPECT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  loops.body.exprs[1].immediate_int = 4;
  EXPECT_FALSE(validate(spec).ok());
}

TEST(KernelSpec, AnIndirectTermReachesItsWholeBound) {
  KernelSpec spec = exp_kernel();
  LoopsSpec& loops = loops_of(spec);
  spec.buffers.push_back({DType::i64, 6, BufferRole::input});
  loops.body.accesses = {{0, 0, {0, 1}, {{0, 4, 6}}}, {1, 0, {4, 1}, {}}, {2, 0, {1, 0}, {}}};
  loops.body.exprs = {{ScalarOp::load, DType::i64, {k_no_expr, k_no_expr, k_no_expr}, 2}, load(0)};
  EXPECT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  for (const int64_t bound : {7, -1}) {
    loops.body.accesses[0].indirect[0].bound = bound;
    EXPECT_FALSE(validate(spec).ok()) << bound;
  }
}

TEST(KernelSpec, OperandsComeBeforeTheirUses) {
  KernelSpec spec = exp_kernel();
  loops_of(spec).body.exprs[1].operands[0] = 1;
  EXPECT_FALSE(validate(spec).ok());
}

TEST(KernelSpec, DtypesMustAgree) {
  KernelSpec spec = exp_kernel();
  spec.buffers[1].dtype = DType::f64;
  EXPECT_FALSE(validate(spec).ok());
}

TEST(KernelSpec, AnInputIsNotStoredToAndAnOutputNotLoaded) {
  KernelSpec spec = exp_kernel();
  spec.buffers[1].role = BufferRole::input;
  EXPECT_FALSE(validate(spec).ok());
  spec = exp_kernel();
  spec.buffers[0].role = BufferRole::output;
  EXPECT_FALSE(validate(spec).ok());
}

TEST(KernelSpec, AReductionIsUsedInLaterStagesOnly) {
  KernelSpec spec = row_sum_kernel();
  std::swap(loops_of(spec).stages[0], loops_of(spec).stages[1]);
  EXPECT_FALSE(validate(spec).ok());
}

TEST(KernelSpec, ARowStageDoesNotRunAlongReducedDims) {
  KernelSpec spec = row_sum_kernel();
  loops_of(spec).stages[1].stores[0].value = 0;
  EXPECT_FALSE(validate(spec).ok());
}

TEST(KernelSpec, EqualSpecsHaveEqualBytesAndAnyDifferenceShows) {
  EXPECT_EQ(canonical_bytes(exp_kernel()), canonical_bytes(exp_kernel()));
  KernelSpec other = exp_kernel();
  loops_of(other).body.exprs[1].op = ScalarOp::expm1;
  EXPECT_NE(canonical_bytes(other), canonical_bytes(exp_kernel()));
  other = exp_kernel();
  other.buffers[0].elements = 25;
  EXPECT_NE(canonical_bytes(other), canonical_bytes(exp_kernel()));
}

TEST(KernelSpec, NamesFollowTheGrammar) {
  EXPECT_EQ(kernel_name(exp_kernel()), "loops_f32_6x4");
  EXPECT_EQ(kernel_name(row_sum_kernel()), "loops_f32_6x4_r1_s2");
  GemmSpec gemm;
  gemm.m = 8, gemm.n = 16, gemm.k = 4;
  gemm.a.accesses = {{0, 0, {4, 1}, {}}};
  gemm.b.accesses = {{1, 0, {1, 4}, {}}};
  gemm.a.exprs = gemm.b.exprs = {load(0)};
  gemm.a_value = gemm.b_value = 0;
  gemm.epilogue.accesses = {{2, 0, {16, 1}, {}}};
  gemm.epilogue.exprs = {{ScalarOp::accumulator, DType::f32}};
  gemm.stores = {{0, 0, StoreMode::assign}};
  const KernelSpec spec{
      {{DType::f32, 32, BufferRole::input}, {DType::f32, 64, BufferRole::input}, {DType::f32, 128, BufferRole::output}},
      gemm};
  EXPECT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  EXPECT_EQ(kernel_name(spec), "gemm_f32_8x16x4_nt");
}

TEST(KernelSpec, WindowsHaveADimForEachPieceAndNeighboursAlongTheLastOne) {
  const auto counts = [](const conformance::WindowsCase& c) {
    const KernelSpec spec = conformance::windows_product(c);
    const auto& gemm = std::get<GemmSpec>(spec.kernel);
    const GemmOperandDims a = a_dims(gemm), b = b_dims(gemm);
    EXPECT_EQ(a.rows.first, 1U);
    EXPECT_EQ(a.rows.extent(), gemm.m);
    EXPECT_EQ(a.columns.last(), 2U) << "filters are in no pieces";
    EXPECT_EQ(b.rows.pieces, (std::vector<int64_t>{3, 3, 3})) << "channels and the kernel";
    EXPECT_EQ(b.rows.extent(), gemm.k);
    EXPECT_EQ(b.columns.first, 4U);
    EXPECT_EQ(b.columns.extent(), gemm.n);
    return std::pair(neighbours_along(gemm.b, gemm.b_value, b.rows), neighbours_along(gemm.b, gemm.b_value, b.columns));
  };
  EXPECT_EQ(counts({}), std::pair(int64_t{3}, int64_t{9}));
  EXPECT_EQ(counts({.stride = {2, 2}}), std::pair(int64_t{3}, int64_t{3})) << "5 of them, 2 apart";
  EXPECT_EQ(counts({.dilation = {1, 2}}), std::pair(int64_t{2}, int64_t{7}));
  EXPECT_EQ(counts({.stride = {5, 5}}), std::pair(int64_t{3}, int64_t{0})) << "too far apart";
}

}  // namespace
}  // namespace kiln
