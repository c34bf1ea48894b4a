// Trains a small GPT on synthetic text with nothing but libkiln: the model is built op by op, differentiated
// by Kiln, compiled through the service, and updated by AdamW, which is a graph too. The first run compiles;
// any later one maps what it made, daemon or not.
//
//   train_gpt [steps]

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "client/include/kiln.hpp"

using kiln::api::Client;
using kiln::api::GraphBuilder;
using kiln::api::Program;
using kiln::api::Value;

namespace {

constexpr int64_t k_batch = 4, k_sequence = 32, k_width = 64, k_heads = 4, k_layers = 2, k_vocabulary = 96;
constexpr int64_t k_tokens = k_batch * k_sequence;
constexpr double k_rate = 3e-3, k_beta1 = 0.9, k_beta2 = 0.95, k_decay = 0.01;

/// A trainable tensor: its place among the graph's inputs, and its values.
struct Parameter {
  std::vector<int64_t> shape;
  double deviation;  // of the initial normal distribution; 0 with `fill` for constants
  float fill = 0;

  int64_t size() const {
    int64_t size = 1;
    for (int64_t dim : shape) size *= dim;
    return size;
  }
};

class Model {
 public:
  Model() {
    m_tokens = m_builder.input("i64", {k_tokens});
    m_targets = m_builder.input("i64", {k_tokens});
    Value positions = parameter({k_sequence, k_width}, 0.02);
    Value table = parameter({k_vocabulary, k_width}, 0.02);
    Value x = m_builder.op("embedding", {table, m_tokens});
    x = reshape(x, {k_batch, k_sequence, k_width});
    x = reshape(m_builder.op("add", {x, positions}), {k_tokens, k_width});
    for (int64_t layer = 0; layer < k_layers; ++layer) x = block(x);
    Value logits = linear(normalise(x), k_width, k_vocabulary);
    Value logs = m_builder.op("log_softmax", {logits}, "{dim = 1}");
    m_loss = m_builder.ops("nll_loss", {logs, m_targets}, {}, 2).front();
  }

  /// Outputs: the loss, then the gradient of each parameter.
  kiln::api::Graph graph() const {
    std::vector<size_t> inputs;
    for (size_t i = 0; i < m_parameters.size(); ++i) inputs.push_back(2 + i);
    return m_builder.build({m_loss}).differentiate(0, inputs);
  }

  const std::vector<Parameter>& parameters() const { return m_parameters; }

 private:
  Value parameter(std::vector<int64_t> shape, double deviation, float fill = 0) {
    m_parameters.push_back({shape, deviation, fill});
    return m_builder.input("f32", shape);
  }
  Value reshape(const Value& x, const std::vector<int64_t>& shape) {
    return m_builder.op("reshape", {x}, "{shape = " + GraphBuilder::list(shape) + "}");
  }
  Value linear(const Value& x, int64_t in, int64_t out) {
    Value weight = parameter({in, out}, 0.02), bias = parameter({out}, 0);
    return m_builder.op("add", {m_builder.op("matmul", {x, weight}), bias});
  }
  Value normalise(const Value& x) {
    Value weight = parameter({k_width}, 0, 1), bias = parameter({k_width}, 0);
    return m_builder.ops("layer_norm", {x, weight, bias}, "{normalized_rank = 1, eps = 1e-05}", 3).front();
  }
  Value heads(const Value& x, int64_t which) {
    const int64_t start = which * k_width;
    Value part = m_builder.op(
        "slice", {x},
        "{dim = 1, start = " + std::to_string(start) + ", end = " + std::to_string(start + k_width) + ", step = 1}");
    part = reshape(part, {k_batch, k_sequence, k_heads, k_width / k_heads});
    return m_builder.op("permute", {part}, "{dims = [0, 2, 1, 3]}");
  }
  Value block(const Value& x) {
    Value qkv = linear(normalise(x), k_width, 3 * k_width);
    const std::string scale = std::to_string(1 / std::sqrt(static_cast<double>(k_width / k_heads)));
    Value attended = m_builder
                         .ops("attention", {heads(qkv, 0), heads(qkv, 1), heads(qkv, 2), Value{}},
                              "{causal = true, scale = " + scale + "}", 2)
                         .front();
    attended = reshape(m_builder.op("permute", {attended}, "{dims = [0, 2, 1, 3]}"), {k_tokens, k_width});
    Value y = m_builder.op("add", {x, linear(attended, k_width, k_width)});
    Value hidden = m_builder.op("gelu", {linear(normalise(y), k_width, 4 * k_width)}, "{approximate = \"tanh\"}");
    return m_builder.op("add", {y, linear(hidden, 4 * k_width, k_width)});
  }

  GraphBuilder m_builder;
  std::vector<Parameter> m_parameters;
  Value m_tokens, m_targets, m_loss;
};

/// AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) over all parameters at once. Inputs: the two
/// bias corrections, then weight, gradient and both moments of each parameter. Outputs: the new weight and
/// moments.
kiln::api::Graph adamw(const std::vector<Parameter>& parameters) {
  GraphBuilder b;
  Value correction1 = b.input("f32", {}), correction2 = b.input("f32", {});
  std::vector<Value> outputs;
  for (const Parameter& parameter : parameters) {
    Value w = b.input("f32", parameter.shape), g = b.input("f32", parameter.shape);
    Value m = b.input("f32", parameter.shape), v = b.input("f32", parameter.shape);
    Value m1 = b.op("add", {b.op("mul", {m, b.constant(k_beta1)}), b.op("mul", {g, b.constant(1 - k_beta1)})});
    Value g2 = b.op("mul", {g, g});
    Value v1 = b.op("add", {b.op("mul", {v, b.constant(k_beta2)}), b.op("mul", {g2, b.constant(1 - k_beta2)})});
    Value root = b.op("sqrt", {b.op("div", {v1, correction2})});
    Value step = b.op("div", {b.op("div", {m1, correction1}), b.op("add", {root, b.constant(1e-8)})});
    Value kept = b.op("mul", {w, b.constant(1 - k_rate * k_decay)});
    outputs.push_back(b.op("sub", {kept, b.op("mul", {step, b.constant(k_rate)})}));
    outputs.push_back(m1);
    outputs.push_back(v1);
  }
  return b.build(outputs);
}

struct State {
  std::vector<float> weight, gradient, first, second;
};

std::vector<State> initialise(const std::vector<Parameter>& parameters) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<State> states;
  for (const Parameter& parameter : parameters) {
    const auto size = static_cast<size_t>(parameter.size());
    State state{std::vector<float>(size), std::vector<float>(size), std::vector<float>(size), std::vector<float>(size)};
    for (float& value : state.weight) {
      value = parameter.fill + static_cast<float>(parameter.deviation) * normal(random);
    }
    states.push_back(std::move(state));
  }
  return states;
}

/// Text a model can learn: each character follows from the one before, but for a rare random one.
void make_batch(std::mt19937& random, std::vector<int64_t>& tokens, std::vector<int64_t>& targets) {
  for (int64_t row = 0; row < k_batch; ++row) {
    auto token = static_cast<int64_t>(random() % k_vocabulary);
    for (int64_t i = 0; i < k_sequence; ++i) {
      tokens[static_cast<size_t>(row * k_sequence + i)] = token;
      token = random() % 20 == 0 ? static_cast<int64_t>(random() % k_vocabulary) : (token * 5 + 7) % k_vocabulary;
      targets[static_cast<size_t>(row * k_sequence + i)] = token;
    }
  }
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int train(int steps) {
  const uint32_t threads = std::max(1u, std::thread::hardware_concurrency());
  const Model model;
  auto start = std::chrono::steady_clock::now();
  Client client;
  const Program gradients = client.compile(model.graph());
  const Program optimiser = client.compile(adamw(model.parameters()));
  std::printf("compiled in %.3f s\n", seconds_since(start));

  std::vector<State> states = initialise(model.parameters());
  std::vector<State> next = states;
  std::vector<int64_t> tokens(k_tokens), targets(k_tokens);
  std::mt19937 random(2);
  float first_loss = 0, loss = 0;
  start = std::chrono::steady_clock::now();
  for (int step = 1; step <= steps; ++step) {
    make_batch(random, tokens, targets);
    std::vector<const void*> inputs{tokens.data(), targets.data()};
    std::vector<void*> outputs{&loss};
    for (State& state : states) inputs.push_back(state.weight.data()), outputs.push_back(state.gradient.data());
    gradients.run(inputs, outputs, threads);
    if (step == 1) first_loss = loss;

    const auto correction1 = static_cast<float>(1 - std::pow(k_beta1, step));
    const auto correction2 = static_cast<float>(1 - std::pow(k_beta2, step));
    inputs = {&correction1, &correction2};
    outputs.clear();
    for (size_t i = 0; i < states.size(); ++i) {
      State& now = states[i];
      for (const auto* list : {&now.weight, &now.gradient, &now.first, &now.second}) inputs.push_back(list->data());
      for (auto* list : {&next[i].weight, &next[i].first, &next[i].second}) outputs.push_back(list->data());
    }
    optimiser.run(inputs, outputs, threads);
    std::swap(states, next);
    if (step == 1 || step % 50 == 0) std::printf("step %4d  loss %.4f\n", step, static_cast<double>(loss));
  }
  std::printf("%d steps in %.2f s\n%s\n", steps, seconds_since(start), client.stats().c_str());
  const bool learned = steps < 100 || loss < first_loss / 2;
  if (!learned)
    std::fprintf(stderr, "the loss did not fall: %.4f to %.4f\n", static_cast<double>(first_loss),
                 static_cast<double>(loss));
  return learned && std::isfinite(loss) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? std::atoi(argv[1]) : 300);
  } catch (const kiln::api::Error& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return 1;
  }
}
