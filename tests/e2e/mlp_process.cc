// A client process for tests: builds an MLP with its gradients, compiles and runs it, compares with the f64 reference,
// and prints the process's counters as JSON. Exit 0 when the results are right; the message of an error and 1 else.

#include <cmath>
#include <cstdio>
#include <random>

#include "client/include/kiln.hpp"
#include "frontend/ops/element_evaluator.h"
#include "frontend/text/text.h"

namespace {

constexpr int64_t k_rows = 37, k_in = 65, k_hidden = 129, k_out = 10;

kiln::api::Graph make_graph() {
  kiln::api::GraphBuilder b;
  const auto x = b.input("f32", {k_rows, k_in}), w1 = b.input("f32", {k_in, k_hidden});
  const auto b1 = b.input("f32", {k_hidden}), w2 = b.input("f32", {k_hidden, k_out}), target = b.input("i64", {k_rows});
  const auto hidden = b.op("gelu", {b.op("add", {b.op("matmul", {x, w1}), b1})}, "{approximate = \"tanh\"}");
  const auto logs = b.op("log_softmax", {b.op("matmul", {hidden, w2})}, "{dim = 1}");
  return b.build({b.ops("nll_loss", {logs, target}, {}, 2).front()}).differentiate(0, {1, 2, 3});
}

kiln::Tensor random_tensor(kiln::DType dtype, const std::vector<int64_t>& dims, std::mt19937& random) {
  std::normal_distribution<double> normal;
  kiln::Tensor tensor = kiln::Tensor::zeros(dtype, dims);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.set(i, dtype == kiln::DType::i64 ? static_cast<double>(random() % k_out) : normal(random));
  }
  return tensor;
}

/// The largest error of `got` against `expected`, as a share of the expected root mean square.
double relative_error(const std::vector<float>& got, const std::vector<double>& expected) {
  double squares = 0, worst = 0;
  for (double value : expected) squares += value * value;
  const double scale = std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - expected[i]));
  return worst / scale;
}

int run() {
  const kiln::api::Graph graph = make_graph();
  auto parsed = kiln::parse_text(graph.text());
  if (!parsed.ok()) throw kiln::api::Error(13, parsed.status().message());

  std::mt19937 random(7);
  std::vector<kiln::Tensor> inputs;
  for (kiln::ValueId value : parsed->inputs()) {
    std::vector<int64_t> dims;
    for (const auto& dim : parsed->type(value).shape) dims.push_back(dim.constant());
    inputs.push_back(random_tensor(parsed->type(value).dtype, dims, random));
  }
  auto expected = kiln::evaluate_exact(*parsed, inputs);
  if (!expected.ok()) throw kiln::api::Error(13, expected.status().message());

  kiln::api::Client client;
  const kiln::api::Program program = client.compile(graph);
  std::vector<const void*> sources;
  for (const auto& tensor : inputs) sources.push_back(tensor.bytes.data());
  std::vector<std::vector<float>> results;
  std::vector<void*> targets;
  for (const auto& values : *expected) results.emplace_back(values.size(), std::nanf(""));
  for (auto& result : results) targets.push_back(result.data());
  for (uint32_t threads : {1u, 3u}) {
    for (auto& result : results) std::fill(result.begin(), result.end(), std::nanf(""));
    program.run(sources, targets, threads);
    for (size_t i = 0; i < results.size(); ++i) {
      const double error = relative_error(results[i], (*expected)[i]);
      // f32 with sums of at most 129 terms: 2^-24 * 129 is 8e-6.
      if (!(error < 2e-5))
        throw kiln::api::Error(13, "output " + std::to_string(i) + " is off by " + std::to_string(error));
    }
  }
  std::puts(client.stats().c_str());
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const kiln::api::Error& error) {
    std::printf("{\"error\": %d}\n", error.code());
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
