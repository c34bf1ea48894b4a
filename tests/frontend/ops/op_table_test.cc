// Claims about every row, driven by the table and by samples.cc: a row without a sample fails.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>

#include "frontend/autodiff/gradient.h"
#include "frontend/decompose/decompose.h"
#include "frontend/ops/element_evaluator.h"
#include "samples.h"

namespace kiln {
namespace {

const auto k_keep_nothing = [](const Graph&, const Node&) { return false; };

std::string describe(const Sample& sample, size_t index) { return fmt::format("sample {}: {}", index, sample.op); }

void expect_close(const std::vector<std::vector<double>>& got, const std::vector<std::vector<double>>& expected,
                  double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t r = 0; r < got.size(); ++r) {
    ASSERT_EQ(got[r].size(), expected[r].size()) << "result " << r;
    for (size_t i = 0; i < got[r].size(); ++i) {
      if (got[r][i] == expected[r][i]) continue;  // infinities
      if (std::isnan(got[r][i]) && std::isnan(expected[r][i])) continue;
      ASSERT_TRUE(std::isfinite(got[r][i]) && std::isfinite(expected[r][i]))
          << "result " << r << " element " << i << ": got " << got[r][i] << ", expected " << expected[r][i];
      ASSERT_LE(std::fabs(got[r][i] - expected[r][i]), tolerance * (1 + std::fabs(expected[r][i])))
          << "result " << r << " element " << i << ": got " << got[r][i] << ", expected " << expected[r][i];
    }
  }
}

TEST(OpTable, every_row_has_a_sample_a_rule_and_a_reference) {
  std::set<std::string, std::less<>> sampled;
  for (const Sample& sample : op_samples()) sampled.insert(sample.op);
  for (const OpDef* op : all_ops()) {
    EXPECT_TRUE(sampled.contains(op->name)) << op->name;
    EXPECT_NE(op->infer, nullptr) << op->name;
    EXPECT_NE(op->element, nullptr) << op->name;
    EXPECT_EQ(find_op(op->name), op);
    EXPECT_TRUE(op->kind != OpKind::composite || op->decompose != nullptr) << op->name;
    EXPECT_TRUE(op->kind != OpKind::pointwise || to_string(op->scalar) == op->name) << op->name;
  }
}

TEST(OpTable, every_row_is_written_down_in_the_docs) {
  std::ifstream file(KILN_SOURCE_DIR "/docs/ops.md");
  std::stringstream text;
  text << file.rdbuf();
  std::string words = text.str();
  for (char& c : words) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') c = ' ';
  }
  std::stringstream stream(words);
  const std::set<std::string, std::less<>> known{std::istream_iterator<std::string>(stream), {}};
  for (const OpDef* op : all_ops()) EXPECT_TRUE(known.contains(op->name)) << op->name;
}

TEST(OpTable, decompositions_compute_what_the_reference_says_also_for_nan_and_infinities) {
  std::vector<Sample> samples = op_samples();
  for (Sample& sample : special_samples()) samples.push_back(std::move(sample));
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE(describe(samples[i], i));
    const Graph whole = graph_of(samples[i]);
    std::vector<NodeId> origins;
    const Expected<Graph> parts = decompose(whole, k_keep_nothing, &origins);
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    EXPECT_EQ(origins, std::vector<NodeId>(parts->nodes().size(), 0));
    for (const Node& node : parts->nodes()) EXPECT_EQ(node.op->decompose, nullptr) << node.op->name;
    const auto expected = evaluate_exact(whole, inputs_of(samples[i]));
    const auto got = evaluate_exact(*parts, inputs_of(samples[i]));
    ASSERT_TRUE(expected.ok()) << expected.status().message();
    ASSERT_TRUE(got.ok()) << got.status().message();
    expect_close(*got, *expected, 1e-11);
  }
}

/// The sample with floating operands in bf16, statistics in f32; nothing when the row does not take them so.
std::optional<Sample> in_bf16(Sample sample, bool statistics_in_f32) {
  const OpDef* op = find_op(sample.op);
  bool changed = false;
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    std::optional<Tensor>& operand = sample.operands[i];
    if (!operand || operand->dtype != DType::f64) continue;
    const std::string_view name = op->operands[std::min(i, op->operands.size() - 1)].name;
    const bool statistic = name == "mean" || name == "rstd" || name == "lse";
    const Tensor wide = *operand;
    operand = Tensor::zeros(statistic && statistics_in_f32 ? DType::f32 : DType::bf16, wide.dims);
    for (int64_t e = 0; e < wide.elements(); ++e) operand->set(e, wide.at(e));
    changed = true;
  }
  return changed ? std::optional(sample) : std::nullopt;
}

TEST(OpTable, decompositions_of_half_precision_have_the_right_types_and_round_once) {
  size_t checked = 0;
  for (const Sample& wide : op_samples()) {
    if (find_op(wide.op)->decompose == nullptr) continue;
    SCOPED_TRACE(wide.op);
    const bool statistics_in_f32 = wide.op != "batch_norm";
    const std::optional<Sample> sample = in_bf16(wide, statistics_in_f32);
    if (!sample) continue;
    const Graph whole = graph_of(*sample);
    const Expected<Graph> parts = decompose(whole, k_keep_nothing);
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    const auto expected = evaluate_exact(whole, inputs_of(*sample));
    const auto got = evaluate_exact(*parts, inputs_of(*sample));
    ASSERT_TRUE(expected.ok() && got.ok());
    expect_close(*got, *expected, 0x1p-7);
    ++checked;
  }
  EXPECT_GT(checked, 40U);
}

/// Σ weights * results over the graph's floating outputs, and that sum's gradients, checked against central
/// differences in every element of every floating input.
void expect_gradients_match_differences(const Graph& forward, std::vector<Tensor> inputs) {
  Graph graph = forward;
  std::vector<ValueId> outputs, seeds, wrt;
  std::vector<Tensor> weights;
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  for (const ValueId output : forward.outputs()) {
    const TensorType type = graph.type(output);
    if (!is_floating(type.dtype)) continue;
    Tensor weight = Tensor::zeros(DType::f64, {});
    for (const Dim& dim : type.shape) weight.dims.push_back(dim.constant());
    weight = Tensor::zeros(DType::f64, weight.dims);
    for (int64_t i = 0; i < weight.elements(); ++i) weight.set(i, normal(random));
    outputs.push_back(output);
    seeds.push_back(graph.add_input({DType::f64, type.shape, {}}));
    weights.push_back(std::move(weight));
  }
  std::vector<size_t> wrt_inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_floating(inputs[i].dtype)) continue;
    wrt.push_back(forward.inputs()[i]);
    wrt_inputs.push_back(i);
  }
  if (outputs.empty() || wrt.empty()) return;

  GraphBuilder builder(graph);
  const Expected<std::vector<ValueId>> gradient = gradients(builder, outputs, seeds, wrt);
  ASSERT_TRUE(gradient.ok()) << gradient.status().message();
  for (size_t i = 0; i < wrt.size(); ++i) ASSERT_EQ(graph.type(gradient->at(i)).shape, graph.type(wrt[i]).shape);
  graph.set_outputs(*gradient);
  std::vector<Tensor> all = inputs;
  all.insert(all.end(), weights.begin(), weights.end());
  const auto got = evaluate_exact(graph, all);
  ASSERT_TRUE(got.ok()) << got.status().message();

  const auto weighted_sum = [&] {
    const auto results = evaluate_exact(forward, inputs);
    double total = 0;
    for (size_t r = 0, w = 0; r < results->size(); ++r) {
      if (!is_floating(forward.type(forward.outputs()[r]).dtype)) continue;
      for (size_t i = 0; i < (*results)[r].size(); ++i)
        total += (*results)[r][i] * weights[w].at(static_cast<int64_t>(i));
      ++w;
    }
    return total;
  };
  constexpr double k_step = 1e-5;  // error about step^2 and 1e-16 / step
  for (size_t w = 0; w < wrt.size(); ++w) {
    Tensor& input = inputs[wrt_inputs[w]];
    for (int64_t i = 0; i < input.elements(); ++i) {
      const double at = input.at(i);
      input.set(i, at + k_step);
      const double above = weighted_sum();
      input.set(i, at - k_step);
      const double below = weighted_sum();
      input.set(i, at);
      const double expected = (above - below) / (2 * k_step);
      ASSERT_NEAR((*got)[w][static_cast<size_t>(i)], expected, 1e-6 * (1 + std::fabs(expected)))
          << "input " << wrt_inputs[w] << " element " << i;
    }
  }
}

TEST(OpTable, gradients_of_every_differentiable_row_match_finite_differences) {
  const std::vector<Sample> samples = op_samples();
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE(describe(samples[i], i));
    expect_gradients_match_differences(graph_of(samples[i]), inputs_of(samples[i]));
  }
}

TEST(OpTable, gradients_of_decompositions_match_finite_differences_too) {
  const std::vector<Sample> samples = op_samples();
  for (size_t i = 0; i < samples.size(); ++i) {
    if (find_op(samples[i].op)->decompose == nullptr) continue;
    SCOPED_TRACE(describe(samples[i], i));
    const Expected<Graph> parts = decompose(graph_of(samples[i]), k_keep_nothing);
    ASSERT_TRUE(parts.ok());
    expect_gradients_match_differences(*parts, inputs_of(samples[i]));
  }
}

}  // namespace
}  // namespace kiln
