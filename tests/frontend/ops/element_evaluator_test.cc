#include "frontend/ops/element_evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "frontend/infer/builder.h"

namespace kiln {
namespace {

constexpr double k_nan = std::numeric_limits<double>::quiet_NaN();
constexpr double k_infinity = std::numeric_limits<double>::infinity();

Tensor random_tensor(std::vector<int64_t> dims) {
  static std::mt19937_64 random(7);
  Tensor tensor = Tensor::zeros(DType::f32, std::move(dims));
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, normal(random));
  return tensor;
}

ValueId add_input(Graph& graph, const Tensor& tensor) {
  return graph.add_input({tensor.dtype, Shape(tensor.dims.begin(), tensor.dims.end()), {}});
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// One-input graph: op(x), dense.
std::vector<double> evaluate_unary(std::string_view op, const std::vector<double>& x, Attributes attributes = {}) {
  const Tensor tensor = Tensor::from_values(DType::f32, {static_cast<int64_t>(x.size())}, x);
  Graph graph;
  const ValueId input = add_input(graph, tensor);
  GraphBuilder builder(graph);
  graph.set_outputs({builder.op(op, {input}, std::move(attributes))});
  const Expected<std::vector<std::vector<double>>> out = evaluate_exact(graph, std::span(&tensor, 1));
  EXPECT_TRUE(out.ok()) << out.status().message();
  return out.ok() ? out->front() : std::vector<double>{};
}

TEST(ElementEvaluator, computes_only_what_is_demanded_and_fast_enough_to_be_an_oracle) {
  const std::vector<Tensor> inputs = {random_tensor({512, 768}), random_tensor({768, 3072}), random_tensor({3072})};
  Graph graph;
  std::vector<ValueId> ids;
  std::vector<std::span<const std::byte>> bytes;
  for (const Tensor& input : inputs) {
    ids.push_back(add_input(graph, input));
    bytes.emplace_back(input.bytes);
  }
  GraphBuilder builder(graph);
  const ValueId out = builder.op("gelu", {builder.op("addmm", {ids[2], ids[0], ids[1]})});
  ASSERT_TRUE(builder.status().ok()) << builder.status().message();

  const auto start = std::chrono::steady_clock::now();
  Expected<ElementEvaluator> evaluator = ElementEvaluator::create(graph, bytes);
  ASSERT_TRUE(evaluator.ok());
  std::mt19937_64 random(1);
  double worst = 0;
  for (int i = 0; i < 200; ++i) {
    const auto index = static_cast<int64_t>(random() % (512 * 3072));
    double x = inputs[2].at(index % 3072);
    for (int64_t k = 0; k < 768; ++k) x += inputs[0].at(index / 3072 * 768 + k) * inputs[1].at(k * 3072 + index % 3072);
    worst = std::max(worst, std::fabs(evaluator->at(out, index) - 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)))));
  }
  EXPECT_LT(worst, 1e-9);
  EXPECT_LT(milliseconds_since(start), 400) << "a sanitizer build on a busy machine; about 10 ms otherwise";
}

TEST(ElementEvaluator, evaluates_a_dense_product_in_milliseconds) {
  const std::vector<Tensor> inputs = {random_tensor({64, 64}), random_tensor({64, 64})};
  Graph graph;
  const ValueId a = add_input(graph, inputs[0]), b = add_input(graph, inputs[1]);
  GraphBuilder builder(graph);
  graph.set_outputs({builder.matmul(builder.neg(a), b)});
  const auto start = std::chrono::steady_clock::now();
  const auto out = evaluate_exact(graph, inputs);
  EXPECT_LT(milliseconds_since(start), 500) << "a sanitizer build on a busy machine; about 5 ms otherwise";
  ASSERT_TRUE(out.ok());
  double expected = 0;
  for (int64_t k = 0; k < 64; ++k) expected -= inputs[0].at(63 * 64 + k) * inputs[1].at(k * 64 + 5);
  EXPECT_NEAR((*out)[0][63 * 64 + 5], expected, 1e-12);
}

TEST(ElementEvaluator, reads_strided_inputs) {
  const Tensor memory = Tensor::from_values(DType::f32, {6}, std::vector<double>{0, 1, 2, 3, 4, 5});
  Graph graph;
  const ValueId x = graph.add_input({DType::f32, {3, 2}, {Dim(1), Dim(3)}});  // the transpose of (2, 3)
  GraphBuilder builder(graph);
  graph.set_outputs({builder.neg(x)});
  const auto out = evaluate_exact(graph, std::span(&memory, 1));
  ASSERT_TRUE(out.ok());
  EXPECT_THAT(out->front(), testing::ElementsAre(0, -3, -1, -4, -2, -5));
}

TEST(ElementEvaluator, inputs_that_are_too_small_are_refused) {
  Graph graph;
  graph.set_outputs({graph.add_input({DType::f32, {4}, {}})});
  const Tensor small = Tensor::zeros(DType::f32, {3});
  EXPECT_THAT(evaluate_exact(graph, std::span(&small, 1)).status().message(),
              testing::HasSubstr("input 0 is f32[4] and needs 16 bytes, got 12"));
}

TEST(ElementEvaluator, a_chain_of_ten_thousand_nodes_does_not_exhaust_the_stack) {
  const Tensor one = Tensor::from_values(DType::f32, {1}, std::vector<double>{1});
  Graph graph;
  ValueId value = add_input(graph, one);
  GraphBuilder builder(graph);
  for (int i = 0; i < 10'000; ++i) value = builder.neg(value);
  graph.set_outputs({value});
  EXPECT_EQ((*evaluate_exact(graph, std::span(&one, 1)))[0][0], 1);
}

TEST(ElementEvaluator, an_index_out_of_range_is_reported) {
  const std::vector<Tensor> inputs = {random_tensor({5, 2}),
                                      Tensor::from_values(DType::i64, {2}, std::vector<double>{1, 7})};
  Graph graph;
  const ValueId weight = add_input(graph, inputs[0]), indices = add_input(graph, inputs[1]);
  GraphBuilder builder(graph);
  graph.set_outputs({builder.op("embedding", {weight, indices})});
  const Status status = evaluate_exact(graph, inputs).status();
  EXPECT_EQ(status.code(), StatusCode::out_of_range);
  EXPECT_EQ(status.message(), "embedding: index 7 is outside [0, 5)");
}

TEST(ElementEvaluator, nan_and_infinity_go_through_as_in_torch) {
  using testing::ElementsAre;
  using testing::NanSensitiveDoubleEq;
  EXPECT_THAT(evaluate_unary("relu", {k_nan, -k_infinity, k_infinity}),
              ElementsAre(NanSensitiveDoubleEq(k_nan), 0, k_infinity));
  EXPECT_THAT(evaluate_unary("clamp", {k_nan, -k_infinity, k_infinity}, {{"min", -1.0}, {"max", 1.0}}),
              ElementsAre(NanSensitiveDoubleEq(k_nan), -1, 1));
  EXPECT_THAT(evaluate_unary("softmax", {-k_infinity, 0, -k_infinity}, {{"dim", int64_t{0}}}), ElementsAre(0, 1, 0));
  EXPECT_THAT(evaluate_unary("softmax", {k_nan, 0}, {{"dim", int64_t{0}}}), testing::Each(NanSensitiveDoubleEq(k_nan)));
  EXPECT_THAT(evaluate_unary("softmax", {k_infinity, 0}, {{"dim", int64_t{0}}}),
              testing::Each(NanSensitiveDoubleEq(k_nan)));
  EXPECT_THAT(evaluate_unary("amax", {1, k_nan, 3}, {{"dims", std::vector<int64_t>{0}}}),
              ElementsAre(NanSensitiveDoubleEq(k_nan)));
  EXPECT_THAT(evaluate_unary("argmax", {1, k_nan, 3, k_nan}, {{"dim", int64_t{0}}}), ElementsAre(1));
}

TEST(ElementEvaluator, products_of_integers_wrap) {
  const std::vector<Tensor> inputs = {
      Tensor::from_values(DType::i32, {4}, std::vector<double>{2147483647, 2147483629, -2147483647, 2147483587})};
  Graph graph;
  const ValueId x = add_input(graph, inputs[0]);
  GraphBuilder builder(graph);
  graph.set_outputs({builder.op("prod", {x}, {{"dims", std::vector<int64_t>{0}}, {"keep_dims", false}})});
  const auto result = evaluate_exact(graph, inputs);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  uint32_t wanted = 1;
  for (const int64_t factor : {2147483647, 2147483629, -2147483647, 2147483587}) {
    wanted *= static_cast<uint32_t>(factor);
  }
  EXPECT_EQ((*result)[0][0], static_cast<double>(static_cast<int32_t>(wanted)));
}

TEST(ElementEvaluator, what_is_made_of_integers_that_f64_does_not_hold_is_not_determined) {
  const std::vector<Tensor> inputs = {Tensor::from_values(DType::i64, {1}, std::vector<double>{3'037'000'499}),
                                      Tensor::from_values(DType::i64, {1}, std::vector<double>{2}),
                                      Tensor::from_values(DType::f32, {1}, std::vector<double>{0.5})};
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = add_input(graph, inputs[0]), y = add_input(graph, inputs[1]), z = add_input(graph, inputs[2]);
  const ValueId square = b.mul(x, x), rest = b.op("remainder", {square, y}), is_odd = b.op("eq", {rest, y});
  graph.set_outputs({rest, b.op("bitwise_and", {square, y}), b.neg(rest), is_odd, b.cast(rest, DType::f32),
                     b.cast(rest, DType::boolean), b.op("logical_not", {rest}), b.select(is_odd, z, z),
                     b.op("take", {z, rest}, {{"dim", int64_t{0}}}),
                     b.op("index_add", {z, rest, z}, {{"dim", int64_t{0}}}),
                     b.op("scatter", {z, rest, z}, {{"dim", int64_t{0}}}), b.op("remainder", {x, y})});
  std::vector<std::span<const std::byte>> bytes;
  for (const Tensor& input : inputs) bytes.emplace_back(input.bytes);
  ElementEvaluator evaluator = ElementEvaluator::create(graph, bytes).value();
  evaluator.round_at_random(0);
  const size_t known = graph.outputs().size() - 1;
  for (size_t i = 0; i < known; ++i) EXPECT_TRUE(std::isnan(evaluator.at(graph.outputs()[i], 0))) << i;
  EXPECT_EQ(evaluator.at(graph.outputs()[known], 0), 1);
  EXPECT_TRUE(evaluator.status().ok()) << evaluator.status().to_string();
}

TEST(ElementEvaluator, reductions_of_nothing_are_their_neutral_elements) {
  const Attributes all = {{"dims", std::vector<int64_t>{0}}};
  EXPECT_THAT(evaluate_unary("sum", {}, all), testing::ElementsAre(0));
  EXPECT_THAT(evaluate_unary("prod", {}, all), testing::ElementsAre(1));
  EXPECT_THAT(evaluate_unary("amax", {}, all), testing::ElementsAre(-k_infinity));
  EXPECT_TRUE(evaluate_unary("softmax", {}, {{"dim", int64_t{0}}}).empty());
}

TEST(Tensor, half_precisions_round_to_nearest_even_and_back) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const double f16 = f16_to_f32(half), bf16 = bf16_to_f32(half);
    EXPECT_TRUE(std::isnan(f16) || f64_to_f16(f16) == half) << bits;
    EXPECT_TRUE(std::isnan(bf16) || f64_to_bf16(bf16) == half) << bits;
  }
  EXPECT_EQ(f64_to_f16(1 + 0x1p-11), f64_to_f16(1));                // a tie goes to even
  EXPECT_EQ(f64_to_f16(1 + 0x1p-11 + 0x1p-40), f64_to_f16(1) + 1);  // and is seen beyond f32's precision
  EXPECT_EQ(f64_to_bf16(1 + 3 * 0x1p-8), f64_to_bf16(1) + 2);
  EXPECT_EQ(f64_to_f16(65520), 0x7c00);
  EXPECT_EQ(f64_to_f16(65519), 0x7bff);
  EXPECT_EQ(f64_to_bf16(1e39), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f64_to_bf16(k_nan))) && std::isnan(f16_to_f32(f64_to_f16(k_nan))));
}

}  // namespace
}  // namespace kiln
