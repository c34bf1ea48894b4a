#include "frontend/wire/wire.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "frontend/text/text.h"
#include "frontend/wire/graph_generated.h"

namespace kiln {
namespace {

constexpr std::string_view k_text =
    R"(graph(%x: f32[s0, 8], %w: f32[8, 4]{1, 8}, %b: f32[4]) symbols(s0 >= 1, s0 % 4 == 0) {
  %h = matmul(%x, %w)
  %y, %mean, %rstd = layer_norm(%h, %b, none) {eps = 1e-05, normalized_rank = 1}
  %z = full() {dtype = i64, shape = [s0, 3], value = 2.5}
  %s = slice(%x) {dim = 0, end = s0, start = 1, step = 1}
  %t = sum(%s) {dims = [0, 1], keep_dims = true}
  return %y, %h {1, s0}, %z, %t
}
)";

Graph sample() { return parse_text(k_text).value(); }

std::string error_of(const std::vector<uint8_t>& bytes) {
  Expected<Graph> graph = from_wire(bytes);
  return graph.ok() ? "read" : graph.status().message();
}

/// The sample with one thing changed, by FlatBuffers' object that tests may write freely.
template <typename Change>
std::vector<uint8_t> changed(Change&& change) {
  const std::vector<uint8_t> bytes = to_wire(sample());
  std::unique_ptr<wire::GraphT> object(wire::GetGraph(bytes.data())->UnPack());
  change(*object);
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::Graph::Pack(builder, object.get()), wire::GraphIdentifier());
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

TEST(Wire, AGraphComesBackAsItWas) {
  Expected<Graph> graph = from_wire(to_wire(sample()));
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(print_text(*graph), k_text);
  EXPECT_EQ(to_wire(*graph), to_wire(sample()));
}

TEST(Wire, NumbersThatEqualTheDefaultKeepTheirSign) {
  const auto wire_of = [](std::string_view value) {
    return to_wire(parse_text(fmt::format("graph() {{ %z: f32[3] = full() {{dtype = f32, shape = [3], value = {}}}\n"
                                          "return %z }}",
                                          value))
                       .value());
  };
  EXPECT_EQ(to_wire(from_wire(wire_of("-0.0")).value()), wire_of("-0.0"));
  EXPECT_NE(wire_of("-0.0"), wire_of("0.0"));
}

TEST(Wire, BytesNeedNotBeAligned) {
  const std::vector<uint8_t> bytes = to_wire(sample());
  std::vector<uint8_t> shifted(bytes.size() + 1);
  std::ranges::copy(bytes, shifted.begin() + 1);
  EXPECT_TRUE(from_wire(std::span(shifted).subspan(1)).ok());
}

TEST(Wire, TheEmptyGraphIsAGraph) { EXPECT_TRUE(from_wire(to_wire(Graph())).ok()); }

TEST(Wire, WhatIsNoGraphIsDataLoss) {
  EXPECT_EQ(from_wire({}).status().code(), StatusCode::data_loss);
  std::vector<uint8_t> bytes = to_wire(sample());
  bytes[5] ^= 1;  // the identifier
  EXPECT_EQ(from_wire(bytes).status().code(), StatusCode::data_loss);
  bytes = to_wire(sample());
  bytes.resize(bytes.size() / 2);
  EXPECT_EQ(from_wire(bytes).status().code(), StatusCode::data_loss);
}

TEST(Wire, AnotherVersionIsNamed) {
  const auto bytes = changed([](wire::GraphT& graph) { graph.version = 7; });
  EXPECT_EQ(error_of(bytes), "graph has wire version 7, expected 1");
}

TEST(Wire, LiesAreFoundOut) {
  EXPECT_NE(error_of(changed([](auto& g) { g.nodes[0]->op = "matmull"; })).find("node 0: unknown op 'matmull'"),
            std::string::npos);
  EXPECT_EQ(error_of(changed([](auto& g) { g.nodes[0]->operands[1] = 3; })),
            "node 0: operand is value 3, only 3 are defined before it");
  EXPECT_EQ(error_of(changed([](auto& g) { g.nodes[0]->results[0]->dtype = 8; })),
            "node 0: matmul: result 0 is said to be f64[s0, 4], inferred f32[s0, 4]");
  EXPECT_EQ(error_of(changed([](auto& g) { g.nodes[0]->results.clear(); })),
            "node 0: matmul has 0 results, expected 1");
  EXPECT_EQ(error_of(changed([](auto& g) { g.inputs[0]->dtype = 77; })), "input 0: dtype is 77, expected below 9");
  EXPECT_EQ(error_of(changed([](auto& g) { g.inputs[0]->shape[0]->terms[0]->symbols[0] = 9; })),
            "input 0: dim names symbol 9 of 1");
  EXPECT_EQ(error_of(changed([](auto& g) { g.outputs[0]->value = 1000; })), "output 0 is value 1000, the graph has 10");
  EXPECT_EQ(error_of(changed([](auto& g) { g.guards[1]->modulus = 0; })), "guard 1 has modulus 0");
  EXPECT_EQ(error_of(changed([](auto& g) { g.names.pop_back(); })), "9 names for 10 values");
  EXPECT_EQ(error_of(changed([](auto& g) { g.outputs[1]->strides.pop_back(); })), "1 strides for rank 2");
}

TEST(Wire, LimitsHold) {
  EXPECT_NE(error_of(changed([](auto& g) { g.names[0] = std::string(300, 'a'); })).find("the limit is 256"),
            std::string::npos);
  EXPECT_NE(error_of(changed([](auto& g) { g.symbols.resize(2000, "s"); })).find("2000 symbols, the limit is 1024"),
            std::string::npos);
  EXPECT_NE(error_of(changed([](auto& g) { g.nodes[0]->operands.resize(5000); })).find("the limit is 4096"),
            std::string::npos);
}

TEST(Wire, RandomDamageNeverCrashes) {
  std::mt19937 random(5);
  const std::vector<uint8_t> bytes = to_wire(sample());
  for (int trial = 0; trial < 20'000; ++trial) {
    std::vector<uint8_t> damaged = bytes;
    for (size_t flips = 1 + random() % 4; flips > 0; --flips)
      damaged[random() % damaged.size()] = static_cast<uint8_t>(random());
    if (random() % 8 == 0) damaged.resize(random() % damaged.size());
    (void)from_wire(damaged);
  }
}

}  // namespace
}  // namespace kiln
