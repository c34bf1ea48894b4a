// What becomes of a product in an image where it is loaded and launched: with a driver and a cuBLASLt in host memory that
// record it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cuda/cublaslt/library.h"
#include "backends/cuda/launch_record.h"
#include "tests/backends/cuda/fake_library_test.h"
#include "tests/backends/cuda/fake_product_launch.h"

namespace kiln::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t k_workspace_bytes = 4096;
const Image k_image{.workspace_bytes = k_workspace_bytes};

/// Of fake_cublaslt.c.
enum Lie { k_honest, k_sums_in_halves, k_reduces_rounded, k_takes_more, k_is_none };

/// gelu(transposed left * right + bias) in three batches: 24 x 40 of 16.
ProductRecord product() {
  ProductRecord record{.version = 130101, .workspace_bytes = k_workspace_bytes, .batches = 3};
  record.left = {.buffer = 1,
                 .dtype = DType::bf16,
                 .offset_bytes = 32,
                 .rows = 16,
                 .columns = 24,
                 .column_stride = 20,
                 .batch_stride = 0,
                 .is_transposed = true};
  record.right = {
      .buffer = 0, .dtype = DType::bf16, .rows = 16, .columns = 40, .column_stride = 16, .batch_stride = 644};
  record.result = {.buffer = 3,
                   .dtype = DType::bf16,
                   .offset_bytes = 2,
                   .rows = 24,
                   .columns = 40,
                   .column_stride = 24,
                   .batch_stride = 960};
  record.biases = {{.buffer = 2, .offset_bytes = 8, .batch_stride = 24}};
  record.activation = ProductRecord::Activation::gelu;
  return record;
}

/// The product, and a kernel.
std::vector<uint8_t> code(const ProductRecord& record) {
  LaunchRecord launch{.buffers = 4, .least_driver = 13000};
  launch.kernels = {{.entry = "any", .blocks = 7, .threads = 256}};
  launch.products = {record};
  return pack(launch, {{0x7f, 'E', 'L', 'F'}});
}

class LoadedProducts : public FakeLibraryTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(open(Cublaslt::of_process(), "libcublasLt.so.13"));
    in_library<FakeProductLaunch>("fake_product_launch") = {};
    tell(k_honest);
  }
  void TearDown() override { expect_none_left({"fake_handles", "fake_objects"}); }

  void tell(Lie lie) { in_library<int>("fake_lie") = lie; }
  const FakeProductLaunch& seen() { return in_library<FakeProductLaunch>("fake_product_launch"); }

  void run(const Executable& executable, size_t misaligned_buffer = SIZE_MAX) {
    void* buffers[4];
    for (size_t i = 0; i < std::size(buffers); ++i) buffers[i] = address(i) + (i == misaligned_buffer ? 2 : 0);
    FakeLibraryTest::run(executable, buffers, m_workspace);
  }
  uint8_t* address(size_t buffer) { return m_memory + 256 * buffer; }

  /// Loaded for a verdict and run: the algorithm that was launched, or 0 where it is refused.
  uint64_t algorithm_at(uint32_t place) {
    ProductRecord record = product();
    record.place = place;
    const auto executable = m_device->load_whole(k_image, code(record));
    if (!executable.ok()) {
      EXPECT_EQ(executable.status().code(), StatusCode::unimplemented) << executable.status().to_string();
      return 0;
    }
    run(**executable);
    return seen().algorithm;
  }

  alignas(64) uint8_t m_memory[1024] = {}, m_workspace[k_workspace_bytes] = {};
};

TEST_F(LoadedProducts, are_launched_on_the_callers_stream_as_they_are_recorded) {
  const auto executable = m_device->load_whole(k_image, code(product()));
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  EXPECT_EQ((*executable)->workspace_bytes(), k_workspace_bytes);
  run(**executable);
  EXPECT_EQ(seen().launches, 1u);
  EXPECT_EQ(launch().blocks, 0u);
  EXPECT_EQ(seen().stream, &m_stream);
  EXPECT_EQ(seen().workspace, m_workspace);
  EXPECT_EQ(seen().compute_type, 68);  // CUBLAS_COMPUTE_32F
  EXPECT_EQ(seen().scale_type, 0);     // CUDA_R_32F
  EXPECT_EQ(seen().alpha, 1);
  EXPECT_EQ(seen().beta, 0);
  EXPECT_EQ(seen().epilogue, 36u);  // CUBLASLT_EPILOGUE_GELU_BIAS
  EXPECT_EQ(seen().bias, address(2) + 8);
  EXPECT_EQ(seen().bias_type, 14);  // CUDA_R_16BF
  EXPECT_EQ(seen().bias_batch_stride, 24);
  EXPECT_THAT(seen().transposes, ElementsAre(1, 0));
  const FakeLayout& left = seen().left;
  EXPECT_EQ(left.address, address(1) + 32);
  EXPECT_EQ(left.type, 14);
  EXPECT_EQ(left.rows, 16u);
  EXPECT_EQ(left.columns, 24u);
  EXPECT_EQ(left.column_stride, 20);
  EXPECT_EQ(left.batches, 3);
  EXPECT_EQ(left.batch_stride, 0);
  EXPECT_EQ(seen().right.address, address(0));
  EXPECT_EQ(seen().right.batch_stride, 644);
  EXPECT_EQ(seen().result.address, address(3) + 2);
  EXPECT_EQ(seen().result.columns, 40u);
}

TEST_F(LoadedProducts, are_scaled_and_added_to_a_matrix_of_other_strides) {
  ProductRecord record = product();
  record.activation = ProductRecord::Activation::none;
  record.biases.clear();
  record.factor = 0.125;
  record.addends = {{record.result, -2}};
  record.addends[0].matrix.buffer = 2;
  record.addends[0].matrix.offset_bytes = 8;
  record.addends[0].matrix.column_stride = 32;
  const auto executable = m_device->load_whole(k_image, code(record));
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  EXPECT_THAT(in_library<FakeQuestion>("fake_question").alignments, ElementsAre(16, 8, 8, 2));
  run(**executable);
  EXPECT_EQ(seen().epilogue, 1u);
  EXPECT_EQ(seen().alpha, 0.125);
  EXPECT_EQ(seen().beta, -2);
  EXPECT_EQ(seen().addend.address, address(2) + 8);
  EXPECT_EQ(seen().addend.column_stride, 32);
  EXPECT_EQ(seen().result.column_stride, 24);
  EXPECT_EQ(seen().result.address, address(3) + 2);
  run(**executable, 2);
  EXPECT_EQ(seen().launches, 1u) << "the addend's address";
  EXPECT_EQ(launch().blocks, 7u);
}

/// The library takes one layout for what is one matrix (the fake refuses two).
TEST_F(LoadedProducts, are_added_in_place) {
  ProductRecord record = product();
  record.activation = ProductRecord::Activation::none;
  record.addends = {{record.result, 1}};
  const auto executable = m_device->load_whole(k_image, code(record));
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  run(**executable);
  EXPECT_EQ(seen().launches, 1u);
  EXPECT_EQ(seen().beta, 1);
  EXPECT_EQ(seen().epilogue, 4u);  // CUBLASLT_EPILOGUE_BIAS
  EXPECT_EQ(seen().addend.address, seen().result.address);
}

TEST_F(LoadedProducts, keep_gelus_input_or_read_it) {
  ProductRecord record = product();
  MatrixRecord input = record.result;
  input.buffer = 2;
  input.offset_bytes = 16;
  input.column_stride = 40;
  record.gelu_inputs = {input};
  for (const bool is_gradient : {false, true}) {
    if (is_gradient) record.activation = ProductRecord::Activation::gelu_gradient;
    if (is_gradient) record.biases.clear();
    const auto executable = m_device->load_whole(k_image, code(record));
    ASSERT_TRUE(executable.ok()) << executable.status().to_string();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(in_library<FakeQuestion>("fake_question").aux), 16u);
    run(**executable);
    EXPECT_EQ(seen().launches, is_gradient ? 2u : 1u);
    EXPECT_EQ(seen().epilogue, is_gradient ? 192u : 164u);  // CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_GELU_AUX_BIAS
    EXPECT_EQ(seen().aux, address(2) + 16);
    EXPECT_EQ(seen().aux_column_stride, 40);
    EXPECT_EQ(seen().aux_batch_stride, 960);
  }
}

TEST_F(LoadedProducts, of_f64_are_computed_in_it) {
  ProductRecord record = product();
  for (MatrixRecord* matrix : {&record.left, &record.right, &record.result}) matrix->dtype = DType::f64;
  record.biases.clear();
  record.activation = ProductRecord::Activation::none;
  const auto executable = m_device->load(k_image, code(record));
  ASSERT_TRUE(executable.ok());
  EXPECT_EQ(in_library<FakeQuestion>("fake_question").numerics, 0x100409u);  // FMA and DMMA, sums and operands of f64
}

TEST_F(LoadedProducts, ask_for_algorithms_of_equal_bits_that_take_every_address_of_theirs) {
  ASSERT_TRUE(m_device->load_whole(k_image, code(product())).ok());
  const auto& question = in_library<FakeQuestion>("fake_question");
  EXPECT_EQ(question.workspace_bytes, k_workspace_bytes);
  EXPECT_EQ(question.reductions, 2u);                          // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
  EXPECT_EQ(question.numerics & 0xff00, 0x0200u);              // sums of f32
  EXPECT_THAT(question.alignments, ElementsAre(16, 8, 2, 2));  // batches at 1288 bytes, a start at 2
  EXPECT_EQ(reinterpret_cast<uintptr_t>(question.bias), 8u);
}

TEST_F(LoadedProducts, of_f32_are_not_computed_in_less) {
  ProductRecord record = product();
  for (MatrixRecord* matrix : {&record.left, &record.right, &record.result}) matrix->dtype = DType::f32;
  ASSERT_TRUE(m_device->load_whole(k_image, code(record)).ok());
  EXPECT_EQ(in_library<FakeQuestion>("fake_question").numerics, 0x080201u);  // FMA, sums and operands of f32
}

TEST_F(LoadedProducts, take_the_algorithm_at_their_place) {
  EXPECT_EQ(algorithm_at(0), 11u);
  EXPECT_EQ(algorithm_at(3), 14u);
  EXPECT_EQ(seen().workspace_bytes, 192u);
  EXPECT_EQ(algorithm_at(4), 0u);
}

TEST_F(LoadedProducts, pass_over_algorithms_that_are_none_of_those_asked_for) {
  for (const Lie lie : {k_sums_in_halves, k_reduces_rounded, k_takes_more, k_is_none}) {
    SCOPED_TRACE(lie);
    tell(lie);
    EXPECT_EQ(algorithm_at(0), 11u);
    EXPECT_EQ(algorithm_at(1), 13u);
    EXPECT_EQ(algorithm_at(3), 0u);
  }
}

TEST_F(LoadedProducts, an_address_they_do_not_take_goes_to_the_kernel) {
  const auto executable = m_device->load(k_image, code(product()));
  ASSERT_TRUE(executable.ok());
  for (size_t buffer = 0; buffer < 4; ++buffer) run(**executable, buffer);
  EXPECT_EQ(seen().launches, 0u);
  EXPECT_EQ(launch().blocks, 7u);
}

TEST_F(LoadedProducts, that_are_not_proposed_leave_the_kernel_and_are_no_verdicts) {
  ProductRecord record = product();
  record.place = 4;
  const auto executable = m_device->load(k_image, code(record));
  ASSERT_TRUE(executable.ok()) << executable.status().to_string();
  run(**executable);
  EXPECT_EQ(seen().launches, 0u);
  EXPECT_EQ(launch().blocks, 7u);
}

TEST_F(LoadedProducts, of_another_library_are_named_with_both_versions) {
  ProductRecord record = product();
  record.version = 120803;
  EXPECT_TRUE(m_device->load(k_image, code(record)).ok());
  const auto judged = m_device->load_whole(k_image, code(record));
  EXPECT_EQ(judged.status().code(), StatusCode::failed_precondition);
  EXPECT_THAT(judged.status().message(), HasSubstr("12.8.3"));
  EXPECT_THAT(judged.status().message(), HasSubstr("13.1.1"));
}

TEST_F(LoadedProducts, of_dtypes_that_the_library_does_not_multiply_are_refused) {
  ProductRecord record = product();
  record.right.dtype = DType::f16;
  EXPECT_EQ(m_device->load_whole(k_image, code(record)).status().code(), StatusCode::unimplemented);
}

TEST(CublasltLibrary, without_a_function_is_refused_by_its_name) {
  const auto cublaslt = Cublaslt::open({{{std::string(KILN_FAKES) + "/lacks", "test"}}});
  ASSERT_FALSE(cublaslt.ok());
  EXPECT_EQ(cublaslt.status().code(), StatusCode::failed_precondition);
  EXPECT_THAT(cublaslt.status().message(), HasSubstr("cublasLtMatmul"));
}

}  // namespace
}  // namespace kiln::cuda
