// Which specs cuBLASLt is asked for and how; and, where the real one is installed, that it takes what it is told, without a
// device. That what it computes is right is for a machine that has one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cuda/compile/backend.h"
#include "backends/cuda/compile/cublaslt_gemm.h"
#include "backends/cuda/cublaslt/product.h"
#include "tests/backends/cuda/chosen_gemms.h"

namespace kiln::cuda {
namespace {

using conformance::gemm;
using conformance::GemmCase;

constexpr auto k_gelu = ProductRecord::Activation::gelu;

/// A case whose product is one of the library's.
ProductRecord product_of(const GemmCase& c) {
  const KernelSpec spec = gemm(c);
  EXPECT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  const auto product = cublaslt_product_of(spec);
  EXPECT_TRUE(product.has_value()) << kernel_name(spec);
  return product.value_or(ProductRecord{});
}

bool is_claimed(const KernelSpec& spec) { return cublaslt_product_of(spec).has_value(); }

GemmSpec& gemm_of(KernelSpec& spec) { return std::get<GemmSpec>(spec.kernel); }

TEST(CublasltProduct, of_rows_is_the_transpose_of_one_of_columns) {
  const ProductRecord product = product_of({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16});
  EXPECT_EQ(product.batches, 1u);
  EXPECT_EQ(product.left,
            (MatrixRecord{.buffer = 1, .dtype = DType::bf16, .rows = 72, .columns = 64, .column_stride = 72}));
  EXPECT_EQ(product.right,
            (MatrixRecord{.buffer = 0, .dtype = DType::bf16, .rows = 64, .columns = 40, .column_stride = 64}));
  EXPECT_EQ(product.result,
            (MatrixRecord{.buffer = 2, .dtype = DType::bf16, .rows = 72, .columns = 40, .column_stride = 72}));
  EXPECT_TRUE(product.biases.empty());
  EXPECT_EQ(product.activation, ProductRecord::Activation::none);
}

TEST(CublasltProduct, turns_operands_that_lie_the_other_way) {
  const ProductRecord product =
      product_of({.m = 40, .n = 72, .k = 64, .dtype = DType::f16, .a_transposed = true, .b_transposed = true});
  EXPECT_EQ(product.left,
            (MatrixRecord{.buffer = 1, .rows = 64, .columns = 72, .column_stride = 64, .is_transposed = true}));
  EXPECT_EQ(product.right,
            (MatrixRecord{.buffer = 0, .rows = 40, .columns = 64, .column_stride = 40, .is_transposed = true}));
}

TEST(CublasltProduct, of_columns_is_itself) {
  const ProductRecord product = product_of({.m = 40, .n = 72, .k = 64, .c_transposed = true});
  EXPECT_EQ(
      product.left,
      (MatrixRecord{
          .buffer = 0, .dtype = DType::f32, .rows = 64, .columns = 40, .column_stride = 64, .is_transposed = true}));
  EXPECT_EQ(product.right.buffer, 1u);
  EXPECT_TRUE(product.right.is_transposed);
  EXPECT_EQ(product.result.rows, 40u);
}

TEST(CublasltProduct, has_batches_at_one_stride_and_gaps_between_columns) {
  const ProductRecord product =
      product_of({.batch = 3, .m = 40, .n = 72, .k = 64, .stored = DType::f32, .b_is_shared = true, .padding = 8});
  EXPECT_EQ(product.batches, 3u);
  EXPECT_EQ(product.left.batch_stride, 0);
  EXPECT_EQ(product.left.column_stride, 80);
  EXPECT_EQ(product.right.batch_stride, 40 * 72);
  EXPECT_EQ(product.result.batch_stride, 40 * 80);
}

TEST(CublasltProduct, of_several_batch_dims_has_their_common_stride_or_is_none) {
  KernelSpec spec = gemm({.batch = 6, .m = 8, .n = 16, .k = 32, .dtype = DType::bf16});
  GemmSpec& split = gemm_of(spec);
  split.batch = {2, 3};
  for (Body* body : {&split.a, &split.b, &split.epilogue}) {
    for (Access& access : body->accesses) access.strides.insert(access.strides.begin(), 3 * access.strides.front());
  }
  ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  ASSERT_TRUE(is_claimed(spec));
  EXPECT_EQ(cublaslt_product_of(spec)->batches, 6u);
  EXPECT_EQ(cublaslt_product_of(spec)->right.batch_stride, 8 * 32);
  split.b.accesses[0].strides[0] = 0;  // shared by the outer batch alone
  EXPECT_FALSE(is_claimed(spec));
}

TEST(CublasltProduct, has_a_bias_of_its_rows_and_gelu) {
  for (const bool gelu : {false, true}) {
    const ProductRecord product =
        product_of({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .with_columns_bias = true, .with_gelu = gelu});
    EXPECT_EQ(product.biases, (std::vector<ProductRecord::Bias>{{.buffer = 3}}));
    EXPECT_EQ(product.activation == k_gelu, gelu);
  }
  const ProductRecord product = product_of({.m = 40, .n = 72, .k = 64, .dtype = DType::f16, .with_gelu = true});
  EXPECT_TRUE(product.biases.empty());
  EXPECT_EQ(product.activation, k_gelu);
}

TEST(CublasltProduct, begins_where_its_accesses_do_and_has_a_bias_for_each_of_the_batch) {
  KernelSpec spec = gemm({.batch = 2, .m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .with_columns_bias = true});
  gemm_of(spec).a.accesses[0].offset = 8;
  gemm_of(spec).epilogue.accesses[0].offset = 3;
  gemm_of(spec).epilogue.accesses[1].offset = 5;
  gemm_of(spec).epilogue.accesses[1].strides = {80, 0, 1};
  for (BufferSpec& buffer : spec.buffers) buffer.elements += 100;
  ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  const auto product = cublaslt_product_of(spec);
  ASSERT_TRUE(product.has_value());
  EXPECT_EQ(product->left.offset_bytes, 0u);
  EXPECT_EQ(product->right.offset_bytes, 16u);
  EXPECT_EQ(product->result.offset_bytes, 6u);
  EXPECT_EQ(product->biases, (std::vector<ProductRecord::Bias>{{.buffer = 3, .offset_bytes = 10, .batch_stride = 80}}));
}

TEST(CublasltProduct, is_none_of_what_the_library_does_not_compute_as_it_stands) {
  const GemmCase linear{.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .with_columns_bias = true};
  EXPECT_TRUE(is_claimed(gemm(linear)));
  EXPECT_FALSE(is_claimed(gemm({.m = 40, .n = 72, .k = 64, .dtype = DType::i8})));
  EXPECT_FALSE(is_claimed(gemm({.m = 40, .n = 72, .k = 0, .dtype = DType::bf16}))) << "no sum";
  EXPECT_FALSE(is_claimed(gemm({.m = 40, .n = 72, .k = 64, .with_bias = true}))) << "tanh";
  EXPECT_FALSE(is_claimed(gemm({.m = 40, .n = 72, .k = 64, .with_gelu = true}))) << "a rough GELU in f32";
  EXPECT_FALSE(is_claimed(gemm({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .stored = DType::f16})));
  EXPECT_FALSE(is_claimed(
      gemm({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .c_transposed = true, .with_columns_bias = true})))
      << "a bias of columns";
  const auto changed = [&](const auto& change) {
    KernelSpec spec = gemm(linear);
    change(spec, gemm_of(spec));
    return is_claimed(spec);
  };
  EXPECT_FALSE(changed([](KernelSpec& spec, GemmSpec&) { spec.buffers[3].dtype = DType::f32; })) << "a wider bias";
  EXPECT_FALSE(changed([](KernelSpec&, GemmSpec& g) { g.a.accesses[0].strides = {128, 2}; })) << "every second element";
  EXPECT_FALSE(changed([](KernelSpec&, GemmSpec& g) { g.a.accesses[0].strides = {8, 1}; })) << "rows that overlap";
  EXPECT_FALSE(changed([](KernelSpec&, GemmSpec& g) { g.b.accesses[0].strides = {0, 1}; })) << "one row for all";
  EXPECT_FALSE(changed([](KernelSpec&, GemmSpec& g) { g.epilogue.accesses[0].strides = {144, 2}; }));
  EXPECT_FALSE(changed([](KernelSpec&, GemmSpec& g) { g.stores[0].mode = StoreMode::add; }));
  EXPECT_FALSE(changed([](KernelSpec&, GemmSpec& g) { g.stores.push_back(g.stores[0]); }));
  EXPECT_FALSE(changed([](KernelSpec&, GemmSpec& g) { g.a_pieces.rows = {5, 8}; }));
  EXPECT_FALSE(changed([](KernelSpec&, GemmSpec& g) { g.epilogue.accesses[1].buffer = 2; })) << "of the result itself";
  EXPECT_FALSE(changed([](KernelSpec&, GemmSpec& g) {
    g.a.exprs.push_back({ScalarOp::neg, DType::bf16, {0, k_no_expr, k_no_expr}});
    g.a_value = 1;
  })) << "a prologue";
}

TEST(CublasltProduct, has_what_is_added_with_its_factor_and_its_own) {
  const ProductRecord product =
      product_of({.batch = 2, .m = 40, .n = 72, .k = 64, .dtype = DType::f16, .factor = 0.125, .with_residual = true});
  EXPECT_EQ(product.factor, 0.125);
  MatrixRecord addend = product.result;
  addend.buffer = 3;
  EXPECT_EQ(product.addends, (std::vector<ProductRecord::Addend>{{addend, 1}}));
  EXPECT_TRUE(product.biases.empty());
  EXPECT_EQ(product.activation, ProductRecord::Activation::none);

  const ProductRecord both =
      product_of({.m = 40, .n = 72, .k = 64, .dtype = DType::f64, .with_columns_bias = true, .with_residual = true});
  EXPECT_EQ(both.addends.front().matrix.buffer, 4u);
  EXPECT_EQ(both.biases.front().buffer, 3u);
  EXPECT_EQ(both.factor, 1);
}

/// As `out += left * right` has it.
TEST(CublasltProduct, is_added_in_place_where_it_lies_as_the_result_does) {
  KernelSpec spec = gemm({.m = 40, .n = 72, .k = 64, .with_residual = true});
  spec.buffers[2].role = BufferRole::inout;
  Access& addend = gemm_of(spec).epilogue.accesses[1];
  addend.buffer = 2;
  spec.buffers.pop_back();
  ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
  ASSERT_TRUE(is_claimed(spec));
  EXPECT_EQ(cublaslt_product_of(spec)->addends.front().matrix, cublaslt_product_of(spec)->result);
  spec.buffers[2].elements += 72;
  addend.offset = 72;
  EXPECT_FALSE(is_claimed(spec)) << "a row further on";
}

TEST(CublasltProduct, keeps_what_gelu_is_of) {
  for (const bool bias : {false, true}) {
    const ProductRecord product = product_of({.batch = 2,
                                              .m = 40,
                                              .n = 72,
                                              .k = 64,
                                              .dtype = DType::bf16,
                                              .padding = 8,
                                              .with_columns_bias = bias,
                                              .with_gelu_input = true});
    EXPECT_EQ(product.activation, k_gelu);
    EXPECT_EQ(product.biases.size(), bias ? 1u : 0u);
    EXPECT_EQ(product.result.buffer, 2u) << "whichever store comes first";
    MatrixRecord kept = product.result;
    kept.buffer = bias ? 4 : 3;
    EXPECT_EQ(product.gelu_inputs, std::vector{kept});
  }
}

TEST(CublasltProduct, is_multiplied_by_the_gradient_of_gelu) {
  const ProductRecord product =
      product_of({.m = 40, .n = 72, .k = 64, .dtype = DType::f16, .factor = 0.5, .with_gelu_gradient = true});
  EXPECT_EQ(product.activation, ProductRecord::Activation::gelu_gradient);
  EXPECT_EQ(product.factor, 0.5);
  MatrixRecord input = product.result;
  input.buffer = 3;
  EXPECT_EQ(product.gelu_inputs, std::vector{input});
  EXPECT_TRUE(product.addends.empty());
}

TEST(CublasltProduct, is_none_where_gelus_input_is_not_as_the_library_has_it) {
  for (const bool is_gradient : {false, true}) {
    SCOPED_TRACE(is_gradient ? "gradient" : "kept");
    const GemmCase c{.batch = 2,
                     .m = 40,
                     .n = 72,
                     .k = 64,
                     .dtype = DType::bf16,
                     .with_gelu_input = !is_gradient,
                     .with_gelu_gradient = is_gradient};
    const auto changed = [&](const auto& change) {
      KernelSpec spec = gemm(c);
      for (BufferSpec& buffer : spec.buffers) buffer.elements *= 4;
      change(spec, gemm_of(spec).epilogue.accesses[1]);
      EXPECT_TRUE(validate(spec).ok()) << validate(spec).to_string();
      return is_claimed(spec);
    };
    EXPECT_TRUE(changed([](KernelSpec&, Access& input) { input.offset = 8; }));
    EXPECT_FALSE(changed([](KernelSpec&, Access& input) { input.strides = {40 * 76, 76, 1}; })) << "no multiple of 8";
    EXPECT_FALSE(changed([](KernelSpec&, Access& input) { input.strides = {40 * 72 + 4, 72, 1}; }));
    EXPECT_FALSE(changed([](KernelSpec&, Access& input) { input.strides = {40 * 72, 1, 40}; })) << "the other way";
    if (!is_gradient) continue;
    EXPECT_FALSE(changed([](KernelSpec&, Access& input) { input.strides = {72, 0, 1}; })) << "a row";
  }
  const GemmCase wide{.m = 40, .n = 72, .k = 64, .with_gelu_input = true};
  EXPECT_FALSE(is_claimed(gemm(wide))) << "a rough GELU in f32";
  EXPECT_FALSE(is_claimed(gemm({.m = 40, .n = 72, .k = 64, .with_gelu_gradient = true})));
}

TEST(CublasltProduct, is_none_where_it_would_read_what_it_writes) {
  KernelSpec kept = gemm({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .with_gelu_input = true});
  gemm_of(kept).epilogue.accesses[1].buffer = 2;
  EXPECT_FALSE(is_claimed(kept)) << "GELU and its input in one place";
  KernelSpec gradient = gemm({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .with_gelu_gradient = true});
  ASSERT_TRUE(is_claimed(gradient));
  gemm_of(gradient).epilogue.accesses[1].buffer = 2;
  EXPECT_FALSE(is_claimed(gradient));
}

TEST(CublasltProduct, is_none_of_stores_that_are_not_gelu_and_its_input) {
  const KernelSpec spec = gemm({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .with_gelu_input = true});
  ASSERT_TRUE(is_claimed(spec));
  KernelSpec twice = spec;
  gemm_of(twice).stores[1].value = gemm_of(twice).stores[0].value;
  EXPECT_FALSE(is_claimed(twice)) << "its input twice";
  KernelSpec values = spec;
  gemm_of(values).stores[0].value = gemm_of(values).stores[1].value;
  EXPECT_FALSE(is_claimed(values)) << "GELU twice";
  KernelSpec third = spec;
  third.buffers.push_back(third.buffers[2]);
  gemm_of(third).epilogue.accesses.push_back(gemm_of(third).epilogue.accesses[0]);
  gemm_of(third).epilogue.accesses.back().buffer = 4;
  gemm_of(third).stores.push_back({gemm_of(third).stores[1].value, 2, StoreMode::assign});
  ASSERT_TRUE(validate(third).ok()) << validate(third).to_string();
  EXPECT_FALSE(is_claimed(third));
}

/// Another constant than GELU's, each in turn.
void expect_none_with_another_constant(const GemmCase& c, size_t expected_constants) {
  const KernelSpec spec = gemm(c);
  ASSERT_TRUE(is_claimed(spec));
  size_t constants = 0;
  for (size_t i = 0; i < std::get<GemmSpec>(spec.kernel).epilogue.exprs.size(); ++i) {
    KernelSpec other = spec;
    ScalarNode& node = gemm_of(other).epilogue.exprs[i];
    if (node.op != ScalarOp::constant) continue;
    ++constants;
    node.immediate *= 1.001;
    EXPECT_FALSE(is_claimed(other)) << i;
  }
  EXPECT_EQ(constants, expected_constants);
}

TEST(CublasltProduct, is_none_where_an_activation_is_nearly_gelu) {
  const GemmCase plain{.m = 40, .n = 72, .k = 64, .dtype = DType::bf16};
  GemmCase c = plain;
  c.with_gelu = true;
  expect_none_with_another_constant(c, 4);
  c = plain;
  c.with_gelu_input = true;
  expect_none_with_another_constant(c, 4);
}

TEST(CublasltProduct, is_none_where_a_gradient_is_nearly_gelus) {
  const KernelSpec spec = gemm({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .with_gelu_gradient = true});
  ASSERT_TRUE(is_claimed(spec));
  for (const double constant : {0.044715, 3 * 0.044715, 0.7978845608028654, 1.0}) {
    KernelSpec other = spec;
    for (ScalarNode& node : gemm_of(other).epilogue.exprs) {
      if (node.op == ScalarOp::constant && node.immediate == constant) node.immediate *= 1.001;
    }
    ASSERT_NE(other, spec);
    EXPECT_FALSE(is_claimed(other)) << constant;
  }
}

class CublasltLibraryHere : public testing::Test {
 protected:
  void SetUp() override {
    if (!Cublaslt::of_process().ok()) GTEST_SKIP() << Cublaslt::of_process().status().to_string();
  }
  static const Cublaslt& cublaslt() { return *Cublaslt::of_process(); }
};

TEST_F(CublasltLibraryHere, takes_the_descriptors_of_every_product) {
  size_t products = 0;
  const auto takes = [&](const KernelSpec& spec, const std::string& name) {
    const auto record = cublaslt_product_of(spec);
    if (!record) return;
    const auto product = CublasltProduct::make(cublaslt(), *record);
    EXPECT_TRUE(product.ok()) << name << ": " << product.status().to_string();
    ++products;
  };
  for (const NamedSpec& each : chosen_gemms()) takes(each.spec, each.name);
  EXPECT_GE(products, 10u);
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    for (const bool turned : {false, true}) {
      takes(gemm({.batch = 3,
                  .m = 40,
                  .n = 72,
                  .k = 65,
                  .dtype = dtype,
                  .a_transposed = turned,
                  .c_transposed = turned,
                  .b_is_shared = true,
                  .padding = 3}),
            "batches with gaps");
      takes(gemm({.m = 1,
                  .n = 72,
                  .k = 64,
                  .dtype = dtype,
                  .b_transposed = turned,
                  .with_columns_bias = true,
                  .with_gelu = is_half(dtype)}),
            "a row");
      takes(gemm({.batch = 2,
                  .m = 40,
                  .n = 72,
                  .k = 64,
                  .dtype = dtype,
                  .c_transposed = turned,
                  .padding = 8,
                  .factor = 0.5,
                  .with_residual = true}),
            "a residual");
      if (!is_half(dtype)) continue;
      takes(gemm({.batch = turned ? 2 : 1,
                  .m = 40,
                  .n = 72,
                  .k = 64,
                  .dtype = dtype,
                  .with_columns_bias = turned,
                  .with_gelu_input = true}),
            "GELU and its input");
      takes(gemm({.batch = turned ? 2 : 1, .m = 40, .n = 72, .k = 64, .dtype = dtype, .with_gelu_gradient = true}),
            "GELU's gradient");
    }
  }
}

TEST_F(CublasltLibraryHere, is_of_the_version_that_keys_name) {
  const CudaCompileBackend backend;
  const Target on{"cuda", "sm_80"};
  const KernelSpec spec = gemm({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16});
  EXPECT_THAT(backend.toolchain_of(spec, on), testing::HasSubstr(cublaslt().identity()));
  EXPECT_GE(cublaslt().version(), 120000u);
  EXPECT_EQ(backend.toolchain_of(gemm({.m = 40, .n = 72, .k = 64, .with_bias = true}), on), backend.toolchain());
}

TEST_F(CublasltLibraryHere, has_choices_behind_the_best_kernel_which_stand_beside_it_in_their_image) {
  if (!Nvrtc::of_process().ok()) GTEST_SKIP() << Nvrtc::of_process().status().to_string();
  const CudaCompileBackend backend;
  const KernelSpec spec = gemm({.m = 512, .n = 512, .k = 256, .dtype = DType::bf16});
  for (const char* name : {"sm_90a", "sm_80"}) {
    const Target on{"cuda", name};
    const auto candidates = default_candidates(backend, spec, on);
    ASSERT_GE(candidates.size(), 6u);
    EXPECT_LE(candidates.size(), 16u);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(candidates[1 + i].description, "cublaslt choice " + std::to_string(i + 1));
    const auto image = backend.compile(spec, candidates[2], on);
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    const auto record = unpack(image->code);
    ASSERT_TRUE(record.ok()) << record.status().to_string();
    ASSERT_EQ(record->products.size(), 1u);
    EXPECT_EQ(record->products[0].version, cublaslt().version());
    EXPECT_EQ(record->products[0].place, 1u);
    EXPECT_EQ(image->workspace_bytes, record->products[0].workspace_bytes);
    EXPECT_TRUE(record->kernels.back().aligned_buffers.empty());
  }
}

}  // namespace
}  // namespace kiln::cuda
