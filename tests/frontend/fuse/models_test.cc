// Which ops share a kernel, in the shapes of real models, and that the kernels are right.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "frontend/autodiff/gradient.h"
#include "frontend/infer/builder.h"
#include "tests/frontend/fuse/plan_runner.h"

namespace kiln {
namespace {

class FusedModel : public testing::Test {
 protected:
  ValueId input(Shape shape, DType dtype = DType::f32) { return graph.add_input({dtype, std::move(shape), {}}); }

  Plan fused(std::vector<ValueId> outputs, int64_t bound = 1) {
    EXPECT_TRUE(b.status().ok()) << b.status().to_string();
    graph.set_outputs(std::move(outputs));
    return expect_fused(graph, random_inputs(graph, 7, bound));
  }

  ValueId layer_norm(ValueId x, int64_t width) {
    return b.op("layer_norm", {x, input({width}), input({width})}, {{"eps", 1e-5}, {"normalized_rank", int64_t{1}}});
  }
  // addmm over the last dim.
  ValueId linear(ValueId x, int64_t from, int64_t to) { return b.op("addmm", {input({to}), x, input({from, to})}); }
  ValueId heads_of(ValueId qkv, int64_t which) {
    const ValueId part = b.slice(qkv, 2, which * k_width, (which + 1) * k_width);
    return b.permute(b.reshape(part, {k_batch, k_seq, k_heads, k_width / k_heads}), {0, 2, 1, 3});
  }
  // As traced from GPT-2: rank-2 products between rank-3 tensors.
  ValueId flat_linear(ValueId x, int64_t from, int64_t to) {
    const ValueId product = linear(b.reshape(x, {k_batch * k_seq, from}), from, to);
    return b.reshape(product, {k_batch, k_seq, to});
  }
  ValueId layer(ValueId x) {
    const ValueId qkv = flat_linear(layer_norm(x, k_width), k_width, 3 * k_width);
    const std::vector<ValueId> operands{heads_of(qkv, 0), heads_of(qkv, 1), heads_of(qkv, 2), k_none};
    const ValueId attended = b.ops("attention", operands, {{"causal", true}, {"scale", 0.5}})[0];
    const ValueId merged = b.reshape(b.permute(attended, {0, 2, 1, 3}), {k_batch, k_seq, k_width});
    x = b.add(flat_linear(merged, k_width, k_width), x);
    const ValueId hidden = b.op("gelu", {flat_linear(layer_norm(x, k_width), k_width, 4 * k_width)},
                                {{"approximate", std::string("tanh")}});
    return b.add(flat_linear(hidden, 4 * k_width, k_width), x);
  }

  static constexpr int64_t k_batch = 2, k_seq = 5, k_heads = 3, k_width = 12;
  Graph graph;
  GraphBuilder b{graph};
};

TEST_F(FusedModel, ALinearLayerWithBiasAndGeluIsOneKernel) {
  for (const char* approximate : {"none", "tanh"}) {
    Graph fresh;
    GraphBuilder builder(fresh);
    const ValueId x = fresh.add_input({DType::f32, {7, 5}, {}}), w = fresh.add_input({DType::f32, {5, 9}, {}});
    const ValueId bias = fresh.add_input({DType::f32, {9}, {}});
    const ValueId linear = builder.op("addmm", {bias, x, w});
    fresh.set_outputs({builder.op("gelu", {linear}, {{"approximate", std::string(approximate)}}), linear});
    const Plan plan = expect_fused(fresh, random_inputs(fresh, 1));
    EXPECT_EQ(plan.launches.size(), 1U) << kernels_of(plan);
  }
}

TEST_F(FusedModel, ATransposedWeightCostsNothing) {
  const Plan plan = fused({b.matmul(input({6, 4}), b.transpose(input({5, 4})))});
  EXPECT_EQ(kernels_of(plan), "gemm_f32_6x5x4_nt ");
}

TEST_F(FusedModel, AWeightInPanelsIsReadByTheProduct) {
  for (const int64_t group : {1, 2}) {
    const ValueId panels = b.permute(input({2, 3, 4, 8, group}), {0, 2, 4, 1, 3});
    const Plan plan = fused({b.matmul(input({7, 8 * group}), b.reshape(panels, {8 * group, 24}))});
    ASSERT_EQ(plan.launches.size(), 1U) << kernels_of(plan);
    const GemmPieces& pieces = std::get<GemmSpec>(plan.specs[0].kernel).b_pieces;
    EXPECT_EQ(pieces.columns, (std::vector<int64_t>{3, 8}));
    EXPECT_EQ(pieces.rows.size(), group == 1 ? 2U : 3U);
  }
}

TEST_F(FusedModel, WhatAWeightIsWidenedFromIsReadByTheProduct) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const ValueId weight = b.transpose(b.cast(input({9, 5}, DType::i8), dtype));
    const ValueId scaled = b.mul(b.matmul(input({7, 5}, dtype), weight), input({9}, dtype));
    EXPECT_EQ(fused({scaled}).launches.size(), 1U);
  }
  const ValueId left = b.cast(input({7, 5}, DType::i8), DType::i32),
                right = b.cast(input({5, 9}, DType::i8), DType::i32);
  const Plan plan = fused({b.matmul(left, right)});
  ASSERT_EQ(plan.launches.size(), 1U);
  EXPECT_EQ(std::get<GemmSpec>(plan.specs[0].kernel).dtype, DType::i8);
}

TEST_F(FusedModel, ABatchThatTheWeightLacksBecomesRows) {
  const Plan plan = fused({b.matmul(input({3, 6, 4}), input({4, 5}))});
  EXPECT_EQ(kernels_of(plan), "gemm_f32_18x5x4_nn ");
}

TEST_F(FusedModel, SoftmaxAndItsBackwardAreOneKernelEach) {
  const ValueId x = input({4, 3, 10});
  for (const char* op : {"softmax", "log_softmax"}) {
    Graph fresh;
    GraphBuilder builder(fresh);
    fresh.set_outputs({builder.op(op, {fresh.add_input({DType::f32, {4, 3, 10}, {}})}, {{"dim", int64_t{2}}})});
    const Plan forward = expect_fused(fresh, random_inputs(fresh, 1));
    EXPECT_EQ(forward.launches.size(), 1U) << kernels_of(forward);
    const ValueId grad = fresh.add_input({DType::f32, {4, 3, 10}, {}});
    fresh.set_outputs({builder.op(std::string(op) + "_backward", {grad, fresh.inputs()[0]}, {{"dim", int64_t{2}}})});
    const Plan backward = expect_fused(fresh, random_inputs(fresh, 2));
    EXPECT_EQ(backward.launches.size(), 1U) << kernels_of(backward);
  }
  EXPECT_EQ(x, 0U);
}

TEST_F(FusedModel, LayerNormIsOneKernelWithItsStatistics) {
  const std::vector<ValueId> operands{input({6, 8}), input({8}), input({8})};
  const Plan plan = fused(b.ops("layer_norm", operands, {{"eps", 1e-5}, {"normalized_rank", int64_t{1}}}));
  EXPECT_EQ(plan.launches.size(), 1U) << kernels_of(plan);
}

// Attention of what `change` makes of scores.
std::vector<ValueId> attention_of(GraphBuilder& b, Graph& graph, int64_t kv_heads,
                                  const std::function<ValueId(ValueId)>& change) {
  const auto input = [&](Shape shape) { return graph.add_input({DType::f32, std::move(shape), {}}); };
  const ValueId q = input({2, 6, 5, 4}), k = input({2, kv_heads, 7, 4}), v = input({2, kv_heads, 7, 3});
  const ValueId scores = b.op("attention_scores", {q, k}, {{"scale", 0.5}});
  return b.ops("attention_of_scores", std::vector<ValueId>{change(scores), v}, {{"causal", true}});
}

TEST_F(FusedModel, AttentionTakesWhateverIsMadeOfEachScore) {
  for (const int64_t kv_heads : {6, 2}) {
    Graph fresh;
    GraphBuilder builder(fresh);
    const ValueId mask = fresh.add_input({DType::boolean, {5, 7}, {}}),
                  slope = fresh.add_input({DType::f32, {6, 1, 1}, {}});
    fresh.set_outputs(attention_of(builder, fresh, kv_heads, [&](ValueId scores) {
      const ValueId capped = builder.op("gelu", {builder.mul(scores, slope)}, {{"approximate", std::string("tanh")}});
      return builder.select(mask, builder.mul(capped, scores), builder.constant(-INFINITY, scores));
    }));
    const std::string shared = kv_heads == 6 ? "" : "_kv2";
    EXPECT_EQ(kernels_of(expect_fused(fresh, random_inputs(fresh, 3))),
              "attention_f32_2x6x5x7x4" + shared + "_causal_score ");
  }
}

TEST_F(FusedModel, ScoresThatAreUsedOtherwiseOrAreTooLongAreValuesOfTheirOwn) {
  ValueId kept = k_none;
  std::vector<ValueId> outputs =
      attention_of(b, graph, 2, [&](ValueId scores) { return kept = b.op("tanh", {scores}); });
  outputs.push_back(kept);
  EXPECT_GT(fused(outputs).launches.size(), 1U);
  Graph fresh;
  GraphBuilder builder(fresh);
  fresh.set_outputs(attention_of(builder, fresh, 2, [&](ValueId scores) {
    for (int i = 0; i < 300; ++i) scores = builder.add(scores, 1e-3 * i);
    return scores;
  }));
  EXPECT_GT(expect_fused(fresh, random_inputs(fresh, 3)).launches.size(), 1U);
  outputs = attention_of(builder, fresh, 2,
                         [&](ValueId scores) { return builder.op("softmax", {scores}, {{"dim", int64_t{3}}}); });
  fresh.set_outputs(outputs);
  EXPECT_GT(expect_fused(fresh, random_inputs(fresh, 3)).launches.size(), 1U);
}

TEST_F(FusedModel, KernelsAreJudgedByTheOpsTheyWereMadeFrom) {
  const ValueId x = input({6, 8});
  const ValueId out = b.ops("layer_norm", std::vector<ValueId>{x, input({8}), k_none},
                            {{"eps", 1e-5}, {"normalized_rank", int64_t{1}}})[0];
  const Plan plan =
      fused({b.op("gelu", {b.op("softmax", {out}, {{"dim", int64_t{1}}})}, {{"approximate", std::string("tanh")}})});
  std::vector<std::string_view> ops;
  for (const Launch& launch : plan.launches) {
    const Graph reference = reference_graph(plan, launch);
    for (const Node& node : reference.nodes()) ops.push_back(node.op->name);
  }
  EXPECT_EQ(ops, (std::vector<std::string_view>{"layer_norm", "softmax", "gelu"})) << kernels_of(plan);
}

TEST_F(FusedModel, LayerNormBackwardIsOneKernelOverRowsAndOneOverColumns) {
  const std::vector<ValueId> operands{input({2, 6, 8}), input({2, 6, 8}), input({2, 6, 1}), input({2, 6, 1}),
                                      input({8})};
  const Plan plan = fused(b.ops("layer_norm_backward", operands, {{"normalized_rank", int64_t{1}}}));
  EXPECT_EQ(plan.launches.size(), 2U) << kernels_of(plan);
}

TEST_F(FusedModel, AnMlpIsTwoKernels) {
  const ValueId x = input({6, 8});
  const ValueId hidden = b.op("relu", {linear(x, 8, 16)});
  const Plan plan = fused({b.add(linear(hidden, 16, 8), x)});
  EXPECT_EQ(plan.launches.size(), 2U) << kernels_of(plan);
}

TEST_F(FusedModel, AGpt2LayerIsSevenKernels) {
  const Plan plan = fused({layer(input({k_batch, k_seq, k_width}))});
  EXPECT_EQ(plan.launches.size(), 7U) << kernels_of(plan);
}

TEST_F(FusedModel, EqualLayersShareTheirSpecs) {
  const Plan plan = fused({layer(layer(input({k_batch, k_seq, k_width})))});
  EXPECT_EQ(plan.launches.size(), 14U) << kernels_of(plan);
  EXPECT_EQ(plan.specs.size(), 6U) << kernels_of(plan);  // the two norms are one spec
}

TEST_F(FusedModel, AGpt2LayerTrains) {
  const ValueId x = input({k_batch, k_seq, k_width});
  const ValueId out = layer(x);
  const ValueId seed = input({k_batch, k_seq, k_width});
  const std::vector<ValueId> wrt(graph.inputs().begin(), graph.inputs().end() - 1);
  const auto grads = gradients(b, std::span(&out, 1), std::span(&seed, 1), wrt);
  ASSERT_TRUE(grads.ok()) << grads.status().to_string();
  std::vector<ValueId> outputs = *grads;
  outputs.push_back(out);
  const Plan plan = fused(outputs);
  EXPECT_LE(plan.launches.size(), 29U) << kernels_of(plan);
}

TEST_F(FusedModel, EmbeddingAndItsGradientAgree) {
  const ValueId weight = input({11, 6}), indices = input({3, 4}, DType::i64), grad = input({3, 4, 6});
  const ValueId position = input({4, 6});
  const ValueId embedded = b.add(b.op("embedding", {weight, indices}), position);
  const ValueId backward = b.op("embedding_backward", {grad, indices}, {{"rows", int64_t{11}}});
  const Plan plan = fused({embedded, backward}, 11);
  EXPECT_EQ(plan.launches.size(), 3U) << kernels_of(plan);
}

TEST_F(FusedModel, AnEmbeddingsGradientInHalvesIsWideForTheRowsAloneThatAreNamed) {
  const ValueId grad = input({3, 4, 6}, DType::bf16), indices = input({3, 4}, DType::i64);
  graph.set_outputs(
      {b.op("embedding_backward", {grad, indices}, {{"rows", int64_t{40}}, {"padding_idx", int64_t{2}}})});
  const Plan plan = expect_fused(graph, random_inputs(graph, 7, 7), 1.0 / 256);
  const auto is_wide = [](const PlanBuffer& each) { return each.dtype == DType::f32 && each.elements >= 40 * 6; };
  EXPECT_TRUE(std::ranges::none_of(plan.buffers, is_wide)) << kernels_of(plan);
}

TEST_F(FusedModel, CrossEntropyAndItsGradientAgree) {
  const ValueId logits = input({6, 10}), target = input({6}, DType::i64);
  const ValueId loss = b.op("cross_entropy", {logits, target}, {{"reduction", std::string("mean")}});
  const auto grads = gradients(b, loss, std::span(&logits, 1));
  ASSERT_TRUE(grads.ok()) << grads.status().to_string();
  const Plan plan = fused({loss, grads->front()}, 10);
  EXPECT_LE(plan.launches.size(), 6U) << kernels_of(plan);
}

TEST_F(FusedModel, ConcatenationAndPaddingAreOneKernel) {
  const ValueId joined = b.op("concat", {b.exp(input({3, 4})), input({3, 2}), input({3, 5})}, {{"dim", int64_t{1}}});
  const ValueId padded = b.op(
      "pad", {joined}, {{"low", std::vector<int64_t>{1, 0}}, {"high", std::vector<int64_t>{0, 2}}, {"value", 3.0}});
  const Plan plan = fused({b.neg(padded)});
  EXPECT_EQ(plan.launches.size(), 1U) << kernels_of(plan);
}

TEST_F(FusedModel, ReshapesAndPermutationsAreFree) {
  const ValueId x = b.permute(b.reshape(b.exp(input({6, 20})), {6, 4, 5}), {1, 0, 2});
  const Plan plan = fused({b.neg(b.reshape(x, {8, 15}))});
  EXPECT_EQ(plan.launches.size(), 1U) << kernels_of(plan);
}

TEST_F(FusedModel, AReshapeThatCutsAcrossIsCopied) {
  const ValueId x = b.permute(b.exp(input({4, 6})), {1, 0});
  const ValueId middle = b.slice(b.reshape(x, {24}), 0, 1, 13);
  const Plan plan = fused({b.neg(middle)});
  EXPECT_EQ(plan.launches.size(), 2U) << kernels_of(plan);
}

TEST_F(FusedModel, AnOutputMayBeAnInputAnotherOutputOrAView) {
  const ValueId x = input({3, 4}), y = b.exp(x);
  const Plan plan = fused({x, y, y, b.permute(y, {1, 0}), b.slice(x, 0, 1, 3)});
  EXPECT_EQ(plan.launches.size(), 3U) << kernels_of(plan);
}

TEST_F(FusedModel, OutputsHaveTheStridesThatAreAskedFor) {
  const ValueId x = input({3, 4}), w = input({4, 5});
  const ValueId product = b.matmul(x, w);
  graph.set_outputs({b.exp(x), product});
  graph.set_output_strides(0, {1, 3});
  graph.set_output_strides(1, {1, 3});
  const Plan plan = expect_fused(graph, random_inputs(graph, 3));
  EXPECT_EQ(plan.launches.size(), 2U) << kernels_of(plan);
}

TEST_F(FusedModel, StridedInputsAreReadWhereTheyLie) {
  const ValueId x = graph.add_input({DType::f32, {3, 4}, {1, 3}}), y = graph.add_input({DType::f32, {3, 4}, {8, 2}});
  const Plan plan = fused({b.add(b.reshape(x, {12}), b.reshape(y, {12}))});
  EXPECT_EQ(plan.launches.size(), 1U) << kernels_of(plan);
}

TEST_F(FusedModel, ALargeSumIsTwoKernelsSoThatThreadsShareIt) {
  const Plan plan = fused({b.sum(input({64, 3, 400}), {0, 1, 2}), b.sum(input({4, 5}), {0, 1})});
  EXPECT_EQ(plan.launches.size(), 3U) << kernels_of(plan);
}

TEST_F(FusedModel, WhatEachPlaceOfAWindowWantsIsComputedOnce) {
  // As a convolution's gradient of filters: sums over positions of an image's windows times what came back.
  const auto launches = [&](int64_t places, auto make_gradient) {
    graph = Graph();
    const ValueId windows = input({4, places, 1024});
    return fused({b.sum(b.mul(windows, make_gradient()), {2})}).launches.size();
  };
  const auto product = [&] { return b.mul(input({4, 1, 1024}), input({4, 1, 1024})); };
  EXPECT_EQ(launches(32, product), 2U);
  EXPECT_EQ(launches(8, product), 1U) << "which costs less than a kernel";
  EXPECT_EQ(launches(32, [&] { return b.cast(input({4, 1, 1024}, DType::bf16), DType::f32); }), 1U);
  EXPECT_EQ(launches(32, [&] { return b.mul(input({1, 1, 1024}), 3.0); }), 1U) << "a number beside lanes";

  graph = Graph();
  const ValueId rows = input({4, 32, 1024});
  const ValueId scale = b.add(input({4, 1, 1024}), 1.0);
  EXPECT_EQ(fused({b.mul(b.op("softmax", {rows}, {{"dim", int64_t{2}}}), scale)}).launches.size(), 1U)
      << "little beside the rest";
}

TEST_F(FusedModel, HalvesAreComputedInSinglePrecision) {
  const ValueId x = input({6, 8}, DType::bf16), w = input({8, 4}, DType::bf16);
  graph.set_outputs({b.exp(b.matmul(x, w)), b.op("softmax", {x}, {{"dim", int64_t{1}}})});
  const Plan plan = expect_fused(graph, random_inputs(graph, 3), 1.0 / 128);
  EXPECT_EQ(plan.launches.size(), 2U) << kernels_of(plan);
}

TEST_F(FusedModel, AProductMultipliesHalvesThatOthersReadToo) {
  for (const bool is_behind_a_view : {false, true}) {
    graph = Graph();
    const ValueId u = input({1, 6, 8}, DType::bf16);
    const ValueId v = is_behind_a_view ? u : b.reshape(u, {6, 8});
    const ValueId rows = b.reshape(b.add(b.mul(v, v), v), {6, 8});
    graph.set_outputs({b.matmul(input({5, 6}, DType::bf16), rows), b.sum(rows, {0})});
    const Plan plan = expect_fused(graph, random_inputs(graph, 3), 1.0 / 32);
    EXPECT_NE(kernels_of(plan).find("gemm_bf16_5x8x6_nn"), std::string::npos) << kernels_of(plan);
  }
}

TEST_F(FusedModel, AProductStoresHalvesAndNotWhatTheyAreWidenedTo) {
  for (const bool is_wanted : {false, true}) {
    graph = Graph();
    const ValueId product = b.matmul(input({6, 8}, DType::bf16), input({8, 4}, DType::bf16));
    const ValueId wide = b.cast(product, DType::f32);
    std::vector<ValueId> outputs{b.sum(wide, {0}), b.amax(wide, {1}), product};
    if (is_wanted) outputs.push_back(wide);
    graph.set_outputs(outputs);
    const Plan plan = expect_fused(graph, random_inputs(graph, 3), 1.0 / 32);
    for (const PlanBuffer& buffer : plan.buffers) {
      EXPECT_FALSE(buffer.kind == BufferKind::temporary && buffer.elements == 24) << kernels_of(plan);
    }
    EXPECT_EQ(plan.launches.size(), 3U) << kernels_of(plan);
  }
}

TEST_F(FusedModel, AHalfThatIsStoredIsTheSameForTheKernelThatStoresIt) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    graph = Graph();
    const ValueId x = input({6, 8}, dtype);
    const ValueId y = b.exp(x);
    graph.set_outputs({y, b.cast(y, DType::f32), b.cast(b.reshape(y, {48}), DType::f32)});
    const std::vector<Tensor> inputs = random_inputs(graph, 5);
    const Plan plan = expect_fused(graph, inputs, 1.0 / 128);
    const auto outputs = run_plan(plan, graph, inputs);
    ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
    for (int64_t e = 0; e < 48; ++e) {
      EXPECT_EQ((*outputs)[1].at(e), (*outputs)[0].at(e)) << e;
      EXPECT_EQ((*outputs)[2].at(e), (*outputs)[0].at(e)) << e;
    }
  }
}

TEST_F(FusedModel, AKernelThatWouldWaitForItselfIsCutWhereItDoes) {
  // The sum shares a kernel with n, which the product reads; t shares one with g, which the sum reads as a view; and t
  // waits for the product.
  const ValueId n = b.exp(input({6, 8})), g = b.exp(input({8}));
  const ValueId view = b.op("flip", {g}, {{"dims", std::vector<int64_t>{0}}});
  const ValueId product = b.matmul(n, input({8, 8}));
  const ValueId sum = b.add(n, view);
  const ValueId t = b.add(b.sum(product, {0}), g);
  EXPECT_EQ(fused({sum, t}).launches.size(), 4U);
}

TEST_F(FusedModel, WhatIsHeavyBehindAProductMayBeApart) {
  const ValueId x = input({7, 5}), hidden = linear(x, 5, 9);
  const Plan plan = fused({b.mul(b.op("gelu", {hidden}), input({7, 9}))});
  EXPECT_EQ(plan.launches.size(), 1U) << kernels_of(plan);
  const auto apart = fuse(graph, {.heavy_epilogues_apart = true});
  ASSERT_TRUE(apart.ok()) << apart.status().to_string();
  ASSERT_EQ(apart->launches.size(), 2U) << kernels_of(*apart);
  EXPECT_EQ(kernel_name(apart->specs[0]), "gemm_f32_7x9x5_nn_e1") << "the bias stays with the product";
}

TEST_F(FusedModel, WhatAProductIsMultipliedByIsStoredOnceWhateverItIsMadeOf) {
  const ValueId x = input({6, 8}), weight = input({5, 8});
  const ValueId gate = b.add(b.op("erf", {x}), b.mul(x, b.exp(b.mul(x, x))));
  const ValueId hidden = b.mul(x, b.op("erf", {x}));
  const Plan plan = fused({b.mul(b.matmul(input({6, 5}), weight), gate), b.matmul(b.transpose(hidden), input({6, 3}))});
  EXPECT_EQ(plan.launches.size(), 3U) << kernels_of(plan);
  const auto temporaries = std::ranges::count(plan.buffers, BufferKind::temporary, &PlanBuffer::kind);
  EXPECT_EQ(temporaries, 2) << "the gate, and an operand: " << kernels_of(plan);
}

TEST_F(FusedModel, WhatAProductIsMultipliedByMayBeComputedThere) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    graph = Graph();
    const ValueId product = b.matmul(input({6, 5}, dtype), input({5, 8}, dtype));
    const ValueId gradient =
        b.op("gelu_backward", {product, input({6, 8}, dtype)}, {{"approximate", std::string("tanh")}});
    graph.set_outputs({gradient});
    const Plan plan = expect_fused(graph, random_inputs(graph, 7), dtype == DType::f32 ? 2e-5 : 1.0 / 32);
    EXPECT_EQ(plan.launches.size(), 2U) << "the derivative first: " << kernels_of(plan);
    const auto inside = fuse(graph, {.heavy_factors_inside = true});
    ASSERT_TRUE(inside.ok()) << inside.status().to_string();
    EXPECT_EQ(inside->launches.size(), 1U) << kernels_of(*inside);
    EXPECT_EQ(inside->specs[0].buffers.size(), 4U) << "operands, what GELU was of, the gradient";
    const auto choices = fuse_choices(plan.graph);
    EXPECT_TRUE(std::ranges::count(choices, FuseChoices{.heavy_factors_inside = true}) == 1);
  }
}

TEST_F(FusedModel, WhatOthersWantOfAFactorIsStoredOnceAllTheSame) {
  const ValueId x = input({6, 8}), bend = b.op("tanh", {x});
  const ValueId gate = b.add(b.mul(bend, bend), x), hidden = b.mul(x, bend);
  const std::vector<ValueId> outputs{b.mul(b.matmul(input({6, 5}), input({5, 8})), gate),
                                     b.matmul(b.transpose(hidden), input({6, 3}))};
  const Plan plan = fused(outputs);
  const auto inside = fuse(graph, {.heavy_factors_inside = true});
  ASSERT_TRUE(inside.ok()) << inside.status().to_string();
  EXPECT_EQ(kernels_of(*inside), kernels_of(plan)) << "the gate beside the operand, of one tanh";
}

TEST_F(FusedModel, AWidenedOperandMayBeApart) {
  const ValueId wide = b.op("cast", {input({5, 9}, DType::i8)}, {{"dtype", DType::f32}});
  const Plan plan = fused({b.matmul(input({7, 5}), wide)}, 100);
  EXPECT_EQ(plan.launches.size(), 1U) << kernels_of(plan);
  const auto apart = fuse(graph, {.widening_apart = true});
  ASSERT_TRUE(apart.ok()) << apart.status().to_string();
  EXPECT_EQ(apart->launches.size(), 2U) << kernels_of(*apart);
}

TEST_F(FusedModel, ProductsThatShareAnOperandMayBeOne) {
  const ValueId x = input({7, 5}), flat = b.reshape(input({7, 5, 1}), {7, 5});
  const std::vector<ValueId> of_one_left{linear(x, 5, 9), b.matmul(x, b.transpose(input({2, 5}))), linear(x, 5, 4)};
  const ValueId weight = input({5, 6});
  const std::vector<ValueId> of_one_right{b.matmul(flat, weight), b.op("relu", {b.matmul(input({3, 5}), weight)})};
  std::vector<ValueId> all = of_one_left;
  all.insert(all.end(), of_one_right.begin(), of_one_right.end());
  EXPECT_EQ(fused(all).launches.size(), 5U);
  const auto merged = fuse(graph, {.products_merged = true});
  ASSERT_TRUE(merged.ok()) << merged.status().to_string();
  std::vector<std::string> products;
  for (const Launch& launch : merged->launches) {
    const KernelSpec& spec = merged->specs[launch.spec];
    if (std::holds_alternative<GemmSpec>(spec.kernel)) products.push_back(kernel_name(spec).substr(0, 15));
  }
  EXPECT_THAT(products, testing::UnorderedElementsAre("gemm_f32_7x15x5", "gemm_f32_10x6x5"));
}

TEST_F(FusedModel, ProductsThatNeedOneAnotherStayApart) {
  const ValueId x = input({5, 5}), first = b.matmul(x, input({5, 5})), second = b.matmul(x, first);
  const ValueId y = input({5, 5}), third = b.matmul(y, second);
  const Plan plan = fused({third, b.matmul(y, first)});
  const auto merged = fuse(graph, {.products_merged = true});
  ASSERT_TRUE(merged.ok()) << merged.status().to_string();
  EXPECT_EQ(plan.launches.size(), 4U) << kernels_of(plan);
  EXPECT_EQ(std::ranges::count_if(merged->launches,
                                  [&](const Launch& launch) {
                                    return std::holds_alternative<GemmSpec>(merged->specs[launch.spec].kernel);
                                  }),
            3)
      << kernels_of(*merged);
}

TEST_F(FusedModel, EqualGraphsGiveEqualPlans) {
  graph.set_outputs({layer(input({k_batch, k_seq, k_width}))});
  const auto a = fuse(graph), c = fuse(graph);
  ASSERT_TRUE(a.ok() && c.ok());
  EXPECT_EQ(a->specs, c->specs);
  EXPECT_EQ(a->digests, c->digests);
}

TEST_F(FusedModel, APlanCarriesTheDigestOfEachSpec) {
  const Plan plan = fused({layer(layer(input({k_batch, k_seq, k_width})))});
  ASSERT_EQ(plan.digests.size(), plan.specs.size());
  for (size_t i = 0; i < plan.specs.size(); ++i) {
    EXPECT_EQ(plan.digests[i], digest_of(canonical_bytes(plan.specs[i]))) << kernel_name(plan.specs[i]);
  }
}

TEST_F(FusedModel, ADeepModelIsFusedQuickly) {
  ValueId x = input({k_batch, k_seq, k_width});
  for (int i = 0; i < 48; ++i) x = layer(x);
  graph.set_outputs({x});
  const auto start = std::chrono::steady_clock::now();
  const auto plan = fuse(graph);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan->launches.size(), 48U * 7);
  RecordProperty("milliseconds", static_cast<int>(elapsed.count() * 1e3));
  RecordProperty("nodes", static_cast<int>(plan->graph.nodes().size()));
  EXPECT_LT(elapsed.count(), 5) << plan->graph.nodes().size() << " nodes";
}

}  // namespace
}  // namespace kiln
