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

/// Another constant than GELU's, each in turn.
TEST(CublasltProduct, is_none_where_an_activation_is_nearly_gelu) {
  const KernelSpec spec = gemm({.m = 40, .n = 72, .k = 64, .dtype = DType::bf16, .with_gelu = true});
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
  EXPECT_EQ(constants, 4u);
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
