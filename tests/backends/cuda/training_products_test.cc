// Which products of a training's steps are cuBLASLt's, as fusion makes them of GPT-2's MLP.
#include <gtest/gtest.h>

#include "backends/cuda/compile/cublaslt_gemm.h"
#include "frontend/fuse/plan.h"
#include "frontend/infer/builder.h"

namespace kiln::cuda {
namespace {

using Activation = ProductRecord::Activation;

class TrainingProducts : public testing::TestWithParam<DType> {
 protected:
  ValueId input(Shape shape, DType dtype = GetParam()) { return m_graph.add_input({dtype, std::move(shape), {}}); }
  ValueId linear(int64_t from, int64_t to) {
    return m_builder.op("addmm", {input({to}), input({k_rows, from}), m_builder.transpose(input({to, from}))});
  }

  /// Of the plan's only product.
  std::optional<ProductRecord> product_of(std::vector<ValueId> outputs, const FuseChoices& choices = {}) {
    EXPECT_TRUE(m_builder.status().ok()) << m_builder.status().to_string();
    m_graph.set_outputs(std::move(outputs));
    const auto plan = fuse(m_graph, choices);
    EXPECT_TRUE(plan.ok()) << plan.status().to_string();
    if (!plan.ok()) return std::nullopt;
    for (const KernelSpec& spec : plan->specs) {
      if (std::holds_alternative<GemmSpec>(spec.kernel)) return cublaslt_product_of(spec);
    }
    ADD_FAILURE() << "no product";
    return std::nullopt;
  }

  static constexpr int64_t k_rows = 64, k_width = 96;
  static constexpr const char* k_tanh = "tanh";
  Graph m_graph;
  GraphBuilder m_builder{m_graph};
};

TEST_P(TrainingProducts, forward_have_gelu_and_what_its_gradient_needs) {
  const ValueId hidden = linear(k_width, 4 * k_width);
  const ValueId value = m_builder.op("gelu", {hidden}, {{"approximate", std::string(k_tanh)}});
  const auto product = product_of({value, hidden});
  EXPECT_EQ(product.has_value(), is_half(GetParam()));
  if (!product) return;
  EXPECT_EQ(product->activation, Activation::gelu);
  EXPECT_EQ(product->biases.size(), 1u);
  EXPECT_EQ(product->gelu_inputs.size(), 1u);
}

TEST_P(TrainingProducts, forward_with_gelu_by_erf_are_not_the_librarys) {
  const ValueId hidden = linear(k_width, 4 * k_width);
  const ValueId value = m_builder.op("gelu", {hidden}, {{"approximate", std::string("none")}});
  EXPECT_FALSE(product_of({value, hidden}).has_value());
}

TEST_P(TrainingProducts, forward_have_the_residual) {
  const auto product = product_of({m_builder.add(input({k_rows, k_width}), linear(4 * k_width, k_width))});
  ASSERT_TRUE(product.has_value());
  EXPECT_EQ(product->biases.size(), 1u);
  EXPECT_EQ(product->addends.size(), 1u);
}

TEST_P(TrainingProducts, backward_have_gelus_gradient_where_they_compute_it) {
  const ValueId gradient = m_builder.matmul(input({k_rows, k_width}), input({k_width, 4 * k_width}));
  const ValueId hidden =
      m_builder.op("gelu_backward", {gradient, input({k_rows, 4 * k_width})}, {{"approximate", std::string(k_tanh)}});
  EXPECT_FALSE(product_of({hidden}).has_value()) << "times a derivative in f32, which the library has no way to read";
  const auto product = product_of({hidden}, {.heavy_factors_inside = true});
  EXPECT_EQ(product.has_value(), is_half(GetParam()));
  EXPECT_TRUE(!product || product->activation == Activation::gelu_gradient);
}

TEST_P(TrainingProducts, backward_of_weights_are_plain) {
  const auto product =
      product_of({m_builder.matmul(m_builder.transpose(input({k_rows, k_width})), input({k_rows, 4 * k_width}))});
  ASSERT_TRUE(product.has_value());
  EXPECT_EQ(product->activation, Activation::none);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TrainingProducts, testing::Values(DType::bf16, DType::f16, DType::f32),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace kiln::cuda
