#include <gtest/gtest.h>

#include "frontend/autodiff/gradient.h"
#include "frontend/infer/builder.h"
#include "tests/jit/build/planted/linked.h"

namespace kiln::planted {

namespace {

/// A graph in the making.
struct Draft {
  Graph graph;
  GraphBuilder b{graph};

  ValueId in(Shape shape, DType dtype = DType::f32) { return graph.add_input({dtype, std::move(shape), {}}); }
  ValueId strided(Shape shape, std::vector<Dim> strides) {
    return graph.add_input({DType::f32, std::move(shape), std::move(strides)});
  }
  ValueId gelu(ValueId x) { return b.op("gelu", {x}, {{"approximate", std::string("tanh")}}); }
  ValueId layer_norm(ValueId x, int64_t width) {
    const std::vector<ValueId> operands{x, in({width}), in({width})};
    return b.ops("layer_norm", operands, {{"eps", 1e-5}, {"normalized_rank", int64_t{1}}}).front();
  }
  ValueId linear(ValueId x, int64_t from, int64_t to) { return b.op("addmm", {in({to}), x, in({from, to})}); }
  ValueId mlp(ValueId x, int64_t width) {
    const ValueId hidden = gelu(linear(layer_norm(x, width), width, 2 * width));
    return b.add(x, linear(hidden, 2 * width, width));
  }
  std::vector<ValueId> gradients_of(ValueId loss, std::vector<ValueId> wrt) {
    auto grads = gradients(b, loss, wrt);
    EXPECT_TRUE(grads.ok()) << grads.status().to_string();
    return grads.ok() ? *grads : std::vector<ValueId>{};
  }
};

/// Four equal blocks; what stands between them is returned, one result twice, one with its rows as columns.
Graph repeated_blocks() {
  Draft d;
  ValueId x = d.in({24, 24});
  std::vector<ValueId> outputs;
  for (int block = 0; block < 4; ++block) outputs.push_back(x = d.mlp(x, 24));
  outputs.push_back(x);
  outputs.push_back(d.b.transpose(outputs[1]));
  d.graph.set_outputs(outputs);
  d.graph.set_output_strides(2, {1, 24});
  return std::move(d.graph);
}

/// Four equal blocks, each of which adds rows to what it made, in place.
Graph repeated_updates() {
  Draft d;
  ValueId x = d.in({24, 24});
  const ValueId place = d.in({30}, DType::i64), rows = d.in({30, 24});
  std::vector<ValueId> outputs;
  for (int block = 0; block < 4; ++block) {
    const ValueId made = d.b.exp(d.b.mul(d.mlp(x, 24), -0.25));
    outputs.push_back(x = d.b.op("index_add", {made, place, rows}, {{"dim", int64_t{0}}}));
  }
  d.graph.set_outputs(outputs);
  return std::move(d.graph);
}

/// Two blocks of attention over padded and transposed inputs, trained.
Graph attention_training() {
  Draft d;
  const int64_t heads = 2, length = 16, width = 16;
  ValueId x = d.strided({length, heads * width}, {40, 1});
  std::vector<ValueId> weights;
  for (int block = 0; block < 2; ++block) {
    std::vector<ValueId> split;
    for (int i = 0; i < 3; ++i) {
      weights.push_back(d.strided({heads * width, heads * width}, {1, heads * width}));
      const ValueId product = d.b.matmul(x, weights.back());
      split.push_back(d.b.permute(d.b.reshape(product, {1, length, heads, width}), {0, 2, 1, 3}));
    }
    const std::vector<ValueId> operands{split[0], split[1], split[2], k_none};
    const ValueId attended = d.b.ops("attention", operands, {{"causal", true}, {"scale", 0.25}}).front();
    x = d.b.add(x, d.b.reshape(d.b.permute(attended, {0, 2, 1, 3}), {length, heads * width}));
  }
  const ValueId loss = d.b.mean(d.b.square(x), {0, 1});
  std::vector<ValueId> outputs{loss, x};
  for (const ValueId gradient : d.gradients_of(loss, weights)) outputs.push_back(gradient);
  d.graph.set_outputs(outputs);
  d.graph.set_output_strides(1, {1, length});
  return std::move(d.graph);
}

/// Two tables, two indices, rows added to where the other index says; the base is an input that is returned, too.
Graph scatters() {
  Draft d;
  const ValueId first = d.in({50, 12}), second = d.in({50, 12});
  const ValueId from = d.in({30}, DType::i64), to = d.in({30}, DType::i64);
  const ValueId rows = d.b.op("embedding", {first, from});
  const ValueId others = d.b.op("embedding", {second, to});
  const ValueId scaled = d.b.mul(d.b.sub(rows, others), 0.75);
  const ValueId one = d.b.op("index_add", {second, to, scaled}, {{"dim", int64_t{0}}});
  const ValueId two = d.b.op("index_add", {d.b.exp(one), from, others}, {{"dim", int64_t{0}}});
  d.graph.set_outputs({one, two, first, second, scaled, scaled});
  d.graph.set_output_strides(5, {1, 30});
  return std::move(d.graph);
}

/// Words, and places that are computed of two numbers, as rows of tables.
Graph words_at_places() {
  Draft d;
  const ValueId words = d.in({50, 12}), places = d.in({40, 12});
  const ValueId word = d.in({30}, DType::i64), begin = d.in({30}, DType::i64), offset = d.in({30}, DType::i64);
  const ValueId x = d.b.add(d.b.op("embedding", {words, word}), d.b.op("embedding", {places, d.b.add(begin, offset)}));
  const ValueId h = d.b.op("tanh", {d.b.matmul(x, d.in({12, 12}))});
  d.graph.set_outputs({d.b.matmul(h, d.in({12, 7})), d.b.permute(h, {1, 0}), d.b.mean(d.b.square(h), {0, 1}),
                       d.b.exp(d.b.matmul(h, d.in({12, 3})))});
  return std::move(d.graph);
}

/// Rows of a table at places that are floats.
Graph rows_at_places() {
  Draft d;
  const ValueId table = d.in({64, 12}), place = d.in({30}), offset = d.in({30});
  const ValueId x = d.b.op("embedding", {table, d.b.cast(d.b.add(place, offset), DType::i64)});
  const ValueId h = d.b.op("tanh", {d.b.matmul(x, d.in({12, 12}))});
  d.graph.set_outputs({d.b.matmul(h, d.in({12, 7})), d.b.permute(h, {1, 0}), d.b.mean(d.b.square(h), {0, 1}),
                       d.b.exp(d.b.matmul(h, d.in({12, 3})))});
  return std::move(d.graph);
}

/// A network that is trained: forward, loss over classes, all gradients.
Graph classifier_training() {
  Draft d;
  const ValueId x = d.in({20, 16}), target = d.in({20}, DType::i64);
  std::vector<ValueId> weights;
  ValueId h = x;
  for (int layer = 0; layer < 3; ++layer) {
    weights.push_back(d.in({16, 16}));
    h = d.b.op("tanh", {d.b.matmul(h, weights.back())});
  }
  const ValueId loss = d.b.op("cross_entropy", {h, target}, {{"reduction", std::string("mean")}});
  std::vector<ValueId> outputs{loss};
  const auto gradients = d.gradients_of(loss, weights);
  for (size_t i = 0; i < gradients.size(); ++i) outputs.push_back(d.b.sub(weights[i], d.b.mul(gradients[i], 0.125)));
  outputs.push_back(d.b.slice(h, 0, 4, 12));
  outputs.push_back(d.b.permute(h, {1, 0}));
  outputs.push_back(weights[2]);
  d.graph.set_outputs(outputs);
  return std::move(d.graph);
}

/// Products so large that of each only some tasks are run, what goes into them, and what is made of one.
Graph large_products() {
  Draft d;
  const ValueId x = d.in({160, 2'048});
  const ValueId h = d.b.op("tanh", {x}), g = d.b.exp(d.b.mul(x, -0.5));
  const ValueId first = d.in({2'048, 8'192}), second = d.in({2'048, 8'192});
  const ValueId product = d.b.matmul(h, first);
  const ValueId follower = d.b.op("tanh", {d.b.matmul(d.b.mul(product, 0.25), d.in({8'192, 24}))});
  d.graph.set_outputs({product, d.b.matmul(g, second), d.b.mean(d.b.square(h), {0, 1}), d.b.matmul(g, first), h, g,
                       follower, d.b.permute(follower, {1, 0})});
  return std::move(d.graph);
}

}  // namespace

Graph product_and_norm_gradients() {
  Draft d;
  const ValueId gradient = d.b.matmul(d.in({24, 40}, DType::bf16), d.in({40, 64}, DType::bf16));
  const ValueId x = d.in({24, 64}, DType::bf16), mean = d.in({24, 1}), reciprocal = d.in({24, 1});
  const std::vector<ValueId> operands{gradient, x, mean, reciprocal, d.in({64}, DType::bf16)};
  d.graph.set_outputs(d.b.ops("layer_norm_backward", operands, {{"normalized_rank", int64_t{1}}}));
  return std::move(d.graph);
}

Graph gradients_beyond_range() {
  Draft d;
  const Shape heads{2, 4, 16, 16};
  const ValueId q = d.b.mul(d.in(heads), 1e8), is_seen = d.in(heads, DType::boolean);
  const ValueId bias = d.b.select(is_seen, d.b.full(0.0, DType::f32), d.b.full(-HUGE_VAL, DType::f32));
  const std::vector<ValueId> operands{d.in(heads), q, d.in(heads), d.in(heads), d.in(heads), d.in({2, 4, 16}), bias};
  d.graph.set_outputs(d.b.ops("attention_backward", operands, {{"scale", 0.25}}));
  return std::move(d.graph);
}

std::vector<std::unique_ptr<Linked>> subjects() {
  std::vector<std::unique_ptr<Linked>> all;
  all.push_back(std::make_unique<Linked>("repeated blocks", repeated_blocks()));
  all.push_back(std::make_unique<Linked>("repeated updates", repeated_updates()));
  all.push_back(std::make_unique<Linked>("attention in training", attention_training()));
  all.push_back(std::make_unique<Linked>("scatters", scatters()));
  all.push_back(std::make_unique<Linked>("classifier in training", classifier_training()));
  all.push_back(std::make_unique<Linked>("words at places", words_at_places()));
  all.push_back(std::make_unique<Linked>("rows at places", rows_at_places()));
  all.push_back(std::make_unique<Linked>("large products", large_products()));
  return all;
}

}  // namespace kiln::planted
