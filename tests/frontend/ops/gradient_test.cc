#include "frontend/autodiff/gradient.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "frontend/infer/bind_symbols.h"
#include "frontend/ops/element_evaluator.h"

namespace kiln {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class GradientTest : public testing::Test {
 protected:
  ValueId parameter(std::vector<int64_t> dims) {
    Tensor tensor = Tensor::zeros(DType::f64, dims);
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, 0.5 * normal(random));
    inputs.push_back(tensor);
    parameters.push_back(graph.add_input({DType::f64, Shape(dims.begin(), dims.end()), {}}));
    return parameters.back();
  }
  ValueId tokens(std::vector<int64_t> dims, int64_t bound) {
    Tensor tensor = Tensor::zeros(DType::i64, dims);
    for (int64_t i = 0; i < tensor.elements(); ++i)
      tensor.set(i, static_cast<double>(random() % static_cast<uint64_t>(bound)));
    inputs.push_back(tensor);
    return graph.add_input({DType::i64, Shape(dims.begin(), dims.end()), {}});
  }
  double evaluate(ValueId value) {
    Graph copy = graph;
    copy.set_outputs({value});
    return (*evaluate_exact(copy, inputs))[0][0];
  }

  std::mt19937_64 random{3};
  std::normal_distribution<double> normal;
  Graph graph;
  GraphBuilder b{graph};
  std::vector<Tensor> inputs;
  std::vector<ValueId> parameters;
};

/// y = x W + c
ValueId linear(GraphBuilder& b, ValueId x, ValueId weight, ValueId bias) { return b.op("addmm", {bias, x, weight}); }

TEST_F(GradientTest, a_small_gpt_has_the_gradients_that_finite_differences_have) {
  constexpr int64_t batch = 2, length = 5, width = 6, heads = 2, words = 11;
  const ValueId ids = tokens({batch, length}, words), targets = tokens({batch * length}, words);
  const ValueId embedding = parameter({words, width}), positions = parameter({length, width});
  const ValueId gain = parameter({width}), shift = parameter({width});
  const ValueId qkv_weight = parameter({width, 3 * width}), qkv_bias = parameter({3 * width});
  const ValueId up = parameter({width, 4 * width}), up_bias = parameter({4 * width});
  const ValueId down = parameter({4 * width, width}), down_bias = parameter({width});

  const auto norm = [&](ValueId x) {
    const ValueId operands[] = {x, gain, shift};
    return b.ops("layer_norm", operands, {{"normalized_rank", int64_t{1}}, {"eps", 1e-5}})[0];
  };
  ValueId x = b.add(b.op("embedding", {embedding, ids}), positions);
  const ValueId qkv = linear(b, norm(x), qkv_weight, qkv_bias);
  std::vector<ValueId> operands;
  for (int64_t i = 0; i < 3; ++i) {
    const ValueId part = b.slice(qkv, 2, Dim(i * width), Dim((i + 1) * width));
    operands.push_back(b.permute(b.reshape(part, {batch, length, heads, width / heads}), {0, 2, 1, 3}));
  }
  operands.push_back(k_none);
  const ValueId attended = b.ops("attention", operands, {{"scale", 1 / std::sqrt(3.0)}, {"causal", true}})[0];
  x = b.add(x, b.reshape(b.permute(attended, {0, 2, 1, 3}), {batch, length, width}));
  const ValueId hidden = b.op("gelu", {linear(b, norm(x), up, up_bias)}, {{"approximate", std::string("tanh")}});
  x = norm(b.add(x, linear(b, hidden, down, down_bias)));
  const ValueId logits = b.matmul(b.reshape(x, {batch * length, width}), b.transpose(embedding));  // tied weights
  const ValueId loss = b.op("cross_entropy", {logits, targets});
  ASSERT_TRUE(b.status().ok()) << b.status().message();

  const Graph forward = [&] {
    Graph copy = graph;
    copy.set_outputs({loss});
    return copy;
  }();
  const Expected<std::vector<ValueId>> gradient = gradients(b, loss, parameters);
  ASSERT_TRUE(gradient.ok()) << gradient.status().message();
  graph.set_outputs(*gradient);
  const auto got = evaluate_exact(graph, inputs);
  ASSERT_TRUE(got.ok()) << got.status().message();

  constexpr double k_step = 1e-5;
  for (size_t p = 0; p < parameters.size(); ++p) {
    Tensor& tensor = inputs[graph.value(parameters[p]).result_index];
    for (int64_t i = 0; i < tensor.elements(); i += 1 + tensor.elements() / 7) {
      const double at = tensor.at(i);
      tensor.set(i, at + k_step);
      const double above = (*evaluate_exact(forward, inputs))[0][0];
      tensor.set(i, at - k_step);
      const double below = (*evaluate_exact(forward, inputs))[0][0];
      tensor.set(i, at);
      EXPECT_NEAR((*got)[p][static_cast<size_t>(i)], (above - below) / (2 * k_step), 1e-8) << "parameter " << p;
    }
  }
}

TEST_F(GradientTest, a_value_used_twice_sums_its_gradients) {
  const ValueId x = parameter({});
  const ValueId loss = b.add(b.mul(x, x), x);
  const auto gradient = gradients(b, loss, parameters);
  ASSERT_TRUE(gradient.ok());
  EXPECT_DOUBLE_EQ(evaluate(gradient->front()), 2 * inputs[0].at(0) + 1);
}

TEST_F(GradientTest, a_second_derivative_is_the_derivative_of_the_first) {
  const ValueId x = parameter({});
  const auto first = gradients(b, b.op("gelu", {x}), parameters);
  ASSERT_TRUE(first.ok());
  const auto second = gradients(b, first->front(), parameters);
  ASSERT_TRUE(second.ok()) << second.status().message();
  const double at = inputs[0].at(0), pdf = std::exp(-at * at / 2) / std::sqrt(2 * M_PI);
  EXPECT_NEAR(evaluate(second->front()), pdf * (2 - at * at), 1e-12);
}

TEST_F(GradientTest, what_the_loss_does_not_depend_on_gets_zeros_of_its_shape) {
  const ValueId x = parameter({}), unused = parameter({2, 3});
  const auto gradient = gradients(b, b.exp(x), parameters);
  ASSERT_TRUE(gradient.ok());
  EXPECT_EQ(graph.type((*gradient)[1]).shape, graph.type(unused).shape);
  EXPECT_EQ(evaluate((*gradient)[1]), 0);
}

TEST_F(GradientTest, symbolic_dims_stay_symbolic) {
  const Dim s = Dim::symbol(graph.add_symbol("s0"));
  const ValueId x = graph.add_input({DType::f64, {s, 3}, {}});
  const ValueId loss = b.mean(b.square(x), {0, 1});
  const auto gradient = gradients(b, loss, std::span(&x, 1));
  ASSERT_TRUE(gradient.ok()) << gradient.status().message();
  EXPECT_EQ(graph.type(gradient->front()).shape, (Shape{s, 3}));
  graph.set_outputs(*gradient);
  const int64_t extents[] = {2};
  const Expected<Graph> bound = bind_symbols(graph, extents);
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  const Tensor input = Tensor::from_values(DType::f64, {2, 3}, std::vector<double>{3, 6, 9, 12, 15, 18});
  const auto got = evaluate_exact(*bound, std::span(&input, 1));
  ASSERT_TRUE(got.ok());
  EXPECT_THAT(got->front(), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(GradientTest, a_loss_that_is_no_floating_scalar_is_refused) {
  const ValueId x = parameter({2});
  EXPECT_THAT(gradients(b, x, parameters).status().message(),
              HasSubstr("the loss is f64[2], expected a floating scalar"));
  const ValueId ids = tokens({2}, 3);
  EXPECT_THAT(gradients(b, b.sum(x, {0}), std::span(&ids, 1)).status().message(),
              HasSubstr("expected a floating dtype"));
}

}  // namespace
}  // namespace kiln
