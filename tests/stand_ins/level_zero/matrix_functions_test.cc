#include "tests/stand_ins/level_zero/matrix_functions.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spirv-tools/libspirv.hpp>

#include <array>
#include <cmath>
#include <cstdlib>
#include <random>

#include "backends/reference/number.h"
#include "tests/stand_ins/level_zero/executor.h"

// The functions against plain loops. Skips where the runtime that executes them is absent.
namespace kiln::stand_in {
namespace {

constexpr size_t k_rows = 8, k_depth = 16;

struct Function {
  DType dtype;
  size_t lanes;
  const char* name;
  size_t a_bits;  // of an element of the vector of A in a lane
};
constexpr Function k_functions[] = {
    {DType::f16, 8, "_Z38intel_sub_group_f16_f16_matrix_mad_k16Dv8_iS_Dv8_f", 32},
    {DType::bf16, 8, "_Z40intel_sub_group_bf16_bf16_matrix_mad_k16Dv8_iS_Dv8_f", 32},
    {DType::f16, 16, "_Z38intel_sub_group_f16_f16_matrix_mad_k16Dv8_sDv8_iDv8_f", 16},
    {DType::bf16, 16, "_Z40intel_sub_group_bf16_bf16_matrix_mad_k16Dv8_sDv8_iDv8_f", 16},
};

/// A kernel that calls the function once: lane l reads vector l of a and b, and adds to vector l of c.
constexpr const char* k_kernel = R"(
OpCapability Addresses
OpCapability Linkage
OpCapability Kernel
OpCapability Vector16
OpCapability Int64
OpCapability Int16
OpCapability SubgroupDispatch
OpMemoryModel Physical64 OpenCL
OpEntryPoint Kernel %kernel "multiply" %id
OpExecutionMode %kernel LocalSize {lanes} 1 1
OpExecutionMode %kernel SubgroupSize {lanes}
OpDecorate %id BuiltIn LocalInvocationId
OpDecorate %id Constant
OpDecorate %function LinkageAttributes "{name}" Import
%void = OpTypeVoid
%u16 = OpTypeInt 16 0
%u32 = OpTypeInt 32 0
%u64 = OpTypeInt 64 0
%f32 = OpTypeFloat 32
%b_type = OpTypeVector %u32 8
{a_type}
%c_type = OpTypeVector %f32 8
%u64x3 = OpTypeVector %u64 3
%id_pointer = OpTypePointer Input %u64x3
%a_pointer = OpTypePointer CrossWorkgroup {a}
%b_pointer = OpTypePointer CrossWorkgroup %b_type
%c_pointer = OpTypePointer CrossWorkgroup %c_type
%id = OpVariable %id_pointer Input
%function_type = OpTypeFunction %c_type {a} %b_type %c_type
%kernel_type = OpTypeFunction %void %a_pointer %b_pointer %c_pointer
%function = OpFunction %c_type None %function_type
%p0 = OpFunctionParameter {a}
%p1 = OpFunctionParameter %b_type
%p2 = OpFunctionParameter %c_type
OpFunctionEnd
%kernel = OpFunction %void None %kernel_type
%a_base = OpFunctionParameter %a_pointer
%b_base = OpFunctionParameter %b_pointer
%c_base = OpFunctionParameter %c_pointer
%block = OpLabel
%ids = OpLoad %u64x3 %id
%lane = OpCompositeExtract %u64 %ids 0
%a_at = OpInBoundsPtrAccessChain %a_pointer %a_base %lane
%b_at = OpInBoundsPtrAccessChain %b_pointer %b_base %lane
%c_at = OpInBoundsPtrAccessChain %c_pointer %c_base %lane
%a = OpLoad {a} %a_at Aligned 16
%b = OpLoad %b_type %b_at Aligned 32
%c = OpLoad %c_type %c_at Aligned 32
%sum = OpFunctionCall %c_type %function %a %b %c
OpStore %c_at %sum Aligned 32
OpReturn
OpFunctionEnd
)";

std::vector<uint8_t> assemble(const Function& function, size_t lanes) {
  const bool is_narrow = function.a_bits == 16;
  const std::string text =
      fmt::format(fmt::runtime(k_kernel), fmt::arg("lanes", lanes), fmt::arg("name", function.name),
                  fmt::arg("a", is_narrow ? "%a_type" : "%b_type"),
                  fmt::arg("a_type", is_narrow ? "%a_type = OpTypeVector %u16 8" : ""));
  spvtools::SpirvTools tools(SPV_ENV_UNIVERSAL_1_2);
  std::vector<uint32_t> words;
  EXPECT_TRUE(tools.Assemble(text, &words) && tools.Validate(words));
  const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
  return {bytes, bytes + words.size() * 4};
}

/// Row after row, of numbers that the dtype holds.
struct Matrix {
  size_t columns;
  std::vector<double> values;
  double at(size_t row, size_t column) const { return values[row * columns + column]; }

  static Matrix random(DType dtype, size_t rows, size_t columns, std::mt19937_64& random) {
    Matrix matrix{columns, {}};
    std::normal_distribution<double> normal(0, 1);
    for (size_t i = 0; i < rows * columns; ++i) {
      uint64_t bits = 0;
      store_number(dtype, &bits, 0, {normal(random), 0});
      matrix.values.push_back(load_number(dtype, &bits, 0).real);
    }
    return matrix;
  }
};

class MatrixFunctions : public testing::TestWithParam<Function> {
 protected:
  void SetUp() override {
    std::string reason;
    m_executor = Executor::open(std::getenv("STAND_IN_OPENCL_CPU"), reason);
    if (m_executor == nullptr) GTEST_SKIP() << reason;
    m_a = {m_function.lanes * k_rows * m_function.a_bits / 8, m_executor.get()};
    m_b = {m_function.lanes * k_depth * 2, m_executor.get()};
    m_c = {m_function.lanes * k_rows * 4, m_executor.get()};
  }

  struct Memory {
    size_t bytes = 0;
    Executor* executor = nullptr;
    void* data = executor == nullptr ? nullptr : executor->allocate(bytes, 64);
  };

  /// What the specification says that lanes hold.
  void lay_out(const Matrix& a, const Matrix& b, const Matrix& c) {
    const size_t of_a = m_function.a_bits / 16;  // neighbours in an element
    for (size_t lane = 0; lane < m_function.lanes; ++lane) {
      for (size_t row = 0; row < k_rows; ++row) {
        for (size_t i = 0; i < of_a; ++i) {
          const size_t place = (lane * k_rows + row) * of_a + i;
          store_number(m_function.dtype, m_a.data, static_cast<int64_t>(place), {a.at(row, lane * of_a + i), 0});
        }
        store_number(DType::f32, m_c.data, static_cast<int64_t>(lane * k_rows + row), {c.at(row, lane), 0});
      }
      for (size_t k = 0; k < k_depth; ++k) {
        store_number(m_function.dtype, m_b.data, static_cast<int64_t>(lane * k_depth + k), {b.at(k, lane), 0});
      }
    }
  }

  double sum(size_t row, size_t column) const {
    return load_number(DType::f32, m_c.data, static_cast<int64_t>(column * k_rows + row)).real;
  }

  void launch(size_t lanes) {
    std::string log;
    const auto program = m_executor->build(assemble(m_function, lanes), /*is_binary=*/false, log);
    ASSERT_NE(program, nullptr) << log;
    const std::array<void*, 3> arguments{m_a.data, m_b.data, m_c.data};
    ASSERT_EQ(program->launch("multiply", arguments, 1, lanes), "");
  }

  const Function m_function = GetParam();
  std::unique_ptr<Executor> m_executor;
  Memory m_a, m_b, m_c;
  std::mt19937_64 m_random{31};
};

TEST_P(MatrixFunctions, they_add_the_product_of_two_matrices) {
  const Matrix a = Matrix::random(m_function.dtype, k_rows, k_depth, m_random);
  const Matrix b = Matrix::random(m_function.dtype, k_depth, m_function.lanes, m_random);
  const Matrix c = Matrix::random(DType::f32, k_rows, m_function.lanes, m_random);
  lay_out(a, b, c);
  launch(m_function.lanes);
  for (size_t row = 0; row < k_rows; ++row) {
    for (size_t column = 0; column < m_function.lanes; ++column) {
      double expected = c.at(row, column);
      for (size_t k = 0; k < k_depth; ++k) expected += a.at(row, k) * b.at(k, column);
      EXPECT_NEAR(sum(row, column), expected, 1e-5) << row << ", " << column;
    }
  }
}

TEST_P(MatrixFunctions, another_sub_group_than_theirs_gets_no_number) {
  const Matrix zeros{k_depth, std::vector<double>(k_depth * k_depth, 0)};
  lay_out(zeros, zeros, zeros);
  const size_t other = m_function.lanes == 8 ? 16 : 8;
  for (Memory* memory : {&m_a, &m_b, &m_c}) *memory = {2 * memory->bytes, m_executor.get()};
  launch(other);
  for (size_t row = 0; row < k_rows; ++row) EXPECT_TRUE(std::isnan(sum(row, 0)));
}

INSTANTIATE_TEST_SUITE_P(Functions, MatrixFunctions, testing::ValuesIn(k_functions), [](const auto& info) {
  return fmt::format("{}_by_{}_lanes", to_string(info.param.dtype), info.param.lanes);
});

}  // namespace
}  // namespace kiln::stand_in
