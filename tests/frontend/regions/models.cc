#include "tests/frontend/regions/models.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "frontend/autodiff/gradient.h"
#include "frontend/infer/builder.h"

namespace kiln {
namespace {

constexpr int64_t k_width = 64;
constexpr int64_t k_heads = 4;
constexpr int64_t k_sequence = 16;

/// Adds inputs as it goes, like a framework that lifts parameters.
struct Model {
  Graph graph;
  GraphBuilder b{graph};
  Dim batch = 2;

  ValueId parameter(Shape shape) { return graph.add_input({DType::f32, std::move(shape), {}}); }
  ValueId linear(ValueId x, int64_t in, int64_t out) {
    return b.add(b.matmul(x, b.transpose(parameter({out, in}))), parameter({out}));
  }
  ValueId norm(ValueId x, double eps = 1e-5) {
    const ValueId weight = parameter({k_width});
    const ValueId bias = parameter({k_width});
    const std::vector<ValueId> operands{x, weight, bias};
    return b.ops("layer_norm", operands, {{"normalized_rank", int64_t{1}}, {"eps", eps}}).at(0);
  }
  ValueId heads(ValueId x) {
    return b.permute(b.reshape(x, {batch, k_sequence, k_heads, k_width / k_heads}), {0, 2, 1, 3});
  }

  ValueId attention(ValueId x, ValueId memory, ValueId mask) {
    const ValueId q = heads(linear(x, k_width, k_width));
    const ValueId k = heads(linear(memory, k_width, k_width));
    const ValueId v = heads(linear(memory, k_width, k_width));
    ValueId scores = b.mul(b.matmul(q, b.transpose(k)), 1 / std::sqrt(16.0));
    if (mask != k_none) scores = b.add(scores, mask);
    const ValueId weights = b.op("softmax", {scores}, {{"dim", int64_t{3}}});
    const ValueId mixed = b.permute(b.matmul(weights, v), {0, 2, 1, 3});
    return linear(b.reshape(mixed, {batch, k_sequence, k_width}), k_width, k_width);
  }
  ValueId feed_forward(ValueId x) {
    return linear(b.op("relu", {linear(x, k_width, 4 * k_width)}), 4 * k_width, k_width);
  }
  ValueId layer(ValueId x, ValueId mask, double eps = 1e-5) {
    const ValueId normal = norm(x, eps);
    x = b.add(x, attention(normal, normal, mask));
    return b.add(x, feed_forward(norm(x)));
  }
  ValueId mask(double value) {
    const ValueId row = b.iota({k_sequence, k_sequence}, 0, DType::f32);
    const ValueId column = b.iota({k_sequence, k_sequence}, 1, DType::f32);
    return b.select(b.op("ge", {row, column}), b.full(0.0, DType::f32), b.full(value, DType::f32));
  }
  Graph finish(std::vector<ValueId> outputs) {
    assert(b.status().ok());
    graph.set_outputs(std::move(outputs));
    return std::move(graph);
  }
};

}  // namespace

namespace {

/// The logits.
ValueId build_transformer(Model& model, const StackOptions& options) {
  if (options.symbolic_batch) model.batch = Dim::symbol(model.graph.add_symbol("s0"));
  GraphBuilder& b = model.b;
  std::vector<ValueId> masks{k_none, k_none};
  if (options.attention_mask) masks = {model.mask(-1e9), b.mul(model.mask(-1e4), model.parameter({k_sequence, 1}))};
  ValueId x = model.graph.add_input({DType::f32, {model.batch, k_sequence, k_width}, {}});
  x = b.add(x, model.parameter({k_sequence, k_width}));
  for (size_t i = 0; i < options.layers; ++i) {
    const bool changed = static_cast<int>(i) == options.changed_eps_layer;
    x = model.layer(x, masks[i % 2], changed ? 1e-6 : 1e-5);
  }
  return model.linear(model.norm(x), k_width, 100);
}

}  // namespace

Graph transformer(const StackOptions& options) {
  Model model;
  return model.finish({build_transformer(model, options)});
}

Graph transformer_training(const StackOptions& options) {
  Model model;
  const ValueId loss = model.b.mean(build_transformer(model, options), {0, 1, 2});
  std::vector<ValueId> outputs = gradients(model.b, loss, model.graph.inputs()).value();
  outputs.insert(outputs.begin(), loss);
  return model.finish(std::move(outputs));
}

Graph mlp(size_t layers) {
  Model model;
  ValueId x = model.parameter({8, k_width});
  for (size_t i = 0; i < layers; ++i) x = model.b.op("relu", {model.linear(x, k_width, k_width)});
  return model.finish({x});
}

Graph encoder_decoder(size_t layers) {
  Model model;
  GraphBuilder& b = model.b;
  ValueId memory = model.parameter({2, k_sequence, k_width});
  for (size_t i = 0; i < layers; ++i) memory = model.layer(memory, k_none);
  memory = model.norm(memory);
  ValueId x = model.parameter({2, k_sequence, k_width});
  const ValueId mask = model.mask(-1e9);
  for (size_t i = 0; i < layers; ++i) {
    x = b.add(x, model.attention(model.norm(x), memory, k_none));
    x = model.layer(x, mask);
  }
  return model.finish({model.linear(x, k_width, 100)});
}

Graph random_graph(std::mt19937& random, size_t nodes) {
  auto pick = [&](size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random); };
  Model model;
  GraphBuilder& b = model.b;
  std::vector<ValueId> values;
  for (int i = 0; i < 4; ++i) values.push_back(model.parameter({k_width, k_width}));
  // Near values are read more often, as in real programs.
  auto value = [&] {
    return values[pick(2) == 0 ? pick(values.size()) : values.size() - 1 - pick(std::min<size_t>(values.size(), 6))];
  };
  for (size_t i = 0; i < nodes; ++i) {
    switch (pick(6)) {
      case 0:
        values.push_back(b.add(value(), value()));
        break;
      case 1:
        values.push_back(b.mul(value(), value()));
        break;
      case 2:
        values.push_back(b.matmul(value(), value()));
        break;
      case 3:
        values.push_back(b.exp(value()));
        break;
      case 4:
        values.push_back(b.transpose(value()));
        break;
      default:
        values.push_back(b.neg(value()));
        break;
    }
  }
  std::vector<bool> read(model.graph.values().size());
  for (const Node& node : model.graph.nodes()) {
    for (ValueId operand : node.operands) read[operand] = true;
  }
  std::vector<ValueId> outputs;
  for (const Node& node : model.graph.nodes()) {
    for (ValueId result : node.results) {
      if (!read[result]) outputs.push_back(result);
    }
  }
  return model.finish(std::move(outputs));
}

Graph shuffled(const Graph& graph, std::mt19937& random) {
  Graph copy;
  for (const std::string& symbol : graph.symbols()) copy.add_symbol(symbol);
  for (const Guard& guard : graph.guards()) copy.add_guard(guard);
  std::vector<ValueId> new_ids(graph.values().size(), k_none);
  for (ValueId input : graph.inputs()) new_ids[input] = copy.add_input(graph.type(input));

  std::vector<NodeId> ready;
  std::vector<size_t> waiting(graph.nodes().size());
  std::vector<std::vector<NodeId>> users(graph.nodes().size());
  for (NodeId id = 0; id < graph.nodes().size(); ++id) {
    for (ValueId operand : graph.node(id).operands) {
      const NodeId producer = operand == k_none ? k_none : graph.value(operand).producer;
      if (producer == k_none) continue;
      users[producer].push_back(id);
      ++waiting[id];
    }
    if (waiting[id] == 0) ready.push_back(id);
  }
  while (!ready.empty()) {
    const size_t at = std::uniform_int_distribution<size_t>(0, ready.size() - 1)(random);
    std::swap(ready[at], ready.back());
    const NodeId id = ready.back();
    ready.pop_back();
    std::vector<ValueId> operands = graph.node(id).operands;
    for (ValueId& operand : operands) operand = operand == k_none ? k_none : new_ids[operand];
    std::vector<TensorType> types;
    for (ValueId result : graph.node(id).results) types.push_back(graph.type(result));
    const NodeId added =
        copy.add_node(graph.node(id).op, std::move(operands), graph.node(id).attributes, std::move(types));
    for (size_t i = 0; i < graph.node(id).results.size(); ++i) {
      new_ids[graph.node(id).results[i]] = copy.node(added).results[i];
    }
    for (NodeId user : users[id]) {
      if (--waiting[user] == 0) ready.push_back(user);
    }
  }
  std::vector<ValueId> outputs;
  for (ValueId output : graph.outputs()) outputs.push_back(new_ids[output]);
  copy.set_outputs(std::move(outputs));
  for (size_t i = 0; i < graph.outputs().size(); ++i) copy.set_output_strides(i, graph.output_strides()[i]);
  return copy;
}

}  // namespace kiln
