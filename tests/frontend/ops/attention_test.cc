// A forward that is taken apart beside a backward that is kept whole must give the gradients of attention: the
// backward reads the forward's out and lse, so both must mean the same in every form.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "frontend/autodiff/gradient.h"
#include "frontend/decompose/decompose.h"
#include "frontend/ops/element_evaluator.h"

namespace kiln {
namespace {

struct Problem {
  Graph graph;
  std::vector<Tensor> inputs;
};

/// Σ out * weights of attention with grouped heads and large scores, and its gradients, as one graph.
Problem training_step(bool causal) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(0, 3);
  Problem problem;
  GraphBuilder builder(problem.graph);
  const auto input = [&](std::vector<int64_t> dims) {
    Tensor tensor = Tensor::zeros(DType::f64, dims);
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, normal(random));
    problem.inputs.push_back(tensor);
    return problem.graph.add_input({DType::f64, Shape(dims.begin(), dims.end()), {}});
  };
  const ValueId q = input({2, 4, 7, 5}), k = input({2, 2, 7, 5}), v = input({2, 2, 7, 3}), w = input({2, 4, 7, 3});
  const ValueId operands[] = {q, k, v, k_none};
  const std::vector<ValueId> results = builder.ops("attention", operands, {{"scale", 1.0}, {"causal", causal}});
  const ValueId loss = builder.sum(builder.mul(results[0], w), {0, 1, 2, 3});
  const ValueId wrt[] = {q, k, v};
  const Expected<std::vector<ValueId>> gradient = gradients(builder, loss, wrt);
  EXPECT_TRUE(gradient.ok()) << gradient.status().message();
  std::vector<ValueId> outputs = *gradient;
  outputs.push_back(results[1]);
  problem.graph.set_outputs(outputs);
  return problem;
}

TEST(Attention, forward_and_backward_agree_however_they_are_taken_apart) {
  for (const bool causal : {false, true}) {
    const Problem problem = training_step(causal);
    const auto expected = evaluate_exact(problem.graph, problem.inputs);
    ASSERT_TRUE(expected.ok());
    for (const std::string kept : {"", "attention", "attention_backward"}) {
      SCOPED_TRACE(kept);
      const Expected<Graph> parts =
          decompose(problem.graph, [&](const Graph&, const Node& node) { return node.op->name == kept; });
      ASSERT_TRUE(parts.ok()) << parts.status().message();
      const auto got = evaluate_exact(*parts, problem.inputs);
      ASSERT_TRUE(got.ok());
      for (size_t r = 0; r < got->size(); ++r) {
        for (size_t i = 0; i < (*got)[r].size(); ++i) ASSERT_NEAR((*got)[r][i], (*expected)[r][i], 1e-10);
      }
    }
  }
}

TEST(Attention, lse_is_the_natural_logarithm_of_the_sum_of_exponentials_of_scaled_scores) {
  const Tensor q = Tensor::from_values(DType::f64, {1, 1, 1, 1}, std::vector<double>{2});
  const Tensor k = Tensor::from_values(DType::f64, {1, 1, 2, 1}, std::vector<double>{3, -1});
  const Tensor inputs[] = {q, k, k};
  Graph graph;
  const ValueId query = graph.add_input({DType::f64, {1, 1, 1, 1}, {}});
  const ValueId key = graph.add_input({DType::f64, {1, 1, 2, 1}, {}});
  const ValueId value = graph.add_input({DType::f64, {1, 1, 2, 1}, {}});
  GraphBuilder builder(graph);
  const ValueId operands[] = {query, key, value, k_none};
  graph.set_outputs(builder.ops("attention", operands, {{"scale", 0.5}}));
  const auto got = evaluate_exact(graph, inputs);
  ASSERT_TRUE(got.ok());
  EXPECT_NEAR((*got)[1][0], std::log(std::exp(3.0) + std::exp(-1.0)), 1e-14);
  EXPECT_NEAR((*got)[0][0], (3 * std::exp(3.0) - std::exp(-1.0)) / (std::exp(3.0) + std::exp(-1.0)), 1e-14);
}

TEST(Attention, a_query_that_keeps_no_key_gives_zeros_and_negative_infinity_and_no_gradient) {
  Graph graph;
  std::vector<Tensor> inputs;
  for (int i = 0; i < 3; ++i)
    inputs.push_back(Tensor::from_values(DType::f64, {1, 1, 2, 1}, std::vector<double>{1, 2}));
  std::vector<ValueId> operands;
  for (int i = 0; i < 3; ++i) operands.push_back(graph.add_input({DType::f64, {1, 1, 2, 1}, {}}));
  GraphBuilder builder(graph);
  operands.push_back(k_none);
  const std::vector<ValueId> results =
      builder.ops("attention", operands, {{"scale", 1.0}, {"causal", true}, {"causal_offset", int64_t{-1}}});
  const ValueId loss = builder.sum(results[0], {0, 1, 2, 3});
  const auto gradient = gradients(builder, loss, std::span(operands).first(1));
  ASSERT_TRUE(gradient.ok()) << gradient.status().message();
  graph.set_outputs({results[0], results[1], gradient->front()});
  for (const bool whole : {true, false}) {
    const Expected<Graph> form = decompose(graph, [&](const Graph&, const Node&) { return whole; });
    ASSERT_TRUE(form.ok());
    const auto got = evaluate_exact(*form, inputs);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ((*got)[0], (std::vector<double>{0, 1}));
    EXPECT_EQ((*got)[1][0], -INFINITY);
    EXPECT_EQ((*got)[2], (std::vector<double>{0, 0}));
  }
}

}  // namespace
}  // namespace kiln
