#include "frontend/canonical/canonical.h"

#include <gtest/gtest.h>

#include "frontend/ops/op.h"
#include "frontend/text/text.h"

namespace kiln {
namespace {

Graph parsed(std::string_view text) {
  Expected<Graph> graph = parse_text(text);
  EXPECT_TRUE(graph.ok()) << graph.status().to_string();
  return graph.ok() ? std::move(*graph) : Graph();
}

std::vector<uint8_t> bytes(std::string_view text) { return canonicalise(parsed(text)).bytes; }

std::string canonical_text(std::string_view text) { return print_text(canonicalise(parsed(text)).graph); }

TEST(Canonical, NamesAndTheOrderOfNodesDoNotMatter) {
  EXPECT_EQ(bytes("graph(%x: f32[n]) { %a = neg(%x) %b = exp(%x) %c = add(%a, %b) return %c }"),
            bytes("graph(%y: f32[m]) { %q = exp(%y) %p = neg(%y) %r = add(%p, %q) return %r }"));
}

TEST(Canonical, TheOrderOfOperandsInputsAndOutputsDoesMatter) {
  const auto base = bytes("graph(%x: f32[4], %y: f32[4]) { %a = sub(%x, %y) return %a, %x }");
  EXPECT_NE(base, bytes("graph(%x: f32[4], %y: f32[4]) { %a = sub(%y, %x) return %a, %x }"));
  EXPECT_NE(base, bytes("graph(%x: f32[4], %y: f32[4]) { %a = sub(%x, %y) return %x, %a }"));
}

TEST(Canonical, WhatDistinguishesGraphsDistinguishesTheirBytes) {
  const auto base = bytes("graph(%x: f32[s0, 4]) symbols(s0 >= 2) { %y = sum(%x) {dims = [1]} return %y }");
  EXPECT_NE(base, bytes("graph(%x: f64[s0, 4]) symbols(s0 >= 2) { %y = sum(%x) {dims = [1]} return %y }"));
  EXPECT_NE(base, bytes("graph(%x: f32[s0, 5]) symbols(s0 >= 2) { %y = sum(%x) {dims = [1]} return %y }"));
  EXPECT_NE(base, bytes("graph(%x: f32[s0, 4]) symbols(s0 >= 3) { %y = sum(%x) {dims = [1]} return %y }"));
  EXPECT_NE(base, bytes("graph(%x: f32[s0, 4]) symbols(s0 >= 2) { %y = sum(%x) {dims = [0]} return %y }"));
  EXPECT_NE(base, bytes("graph(%x: f32[s0, 4]) symbols(s0 >= 2) { %y = amax(%x) {dims = [1]} return %y }"));
  EXPECT_NE(base, bytes("graph(%x: f32[s0, 4]{1, s0}) symbols(s0 >= 2) { %y = sum(%x) {dims = [1]} return %y }"));
}

TEST(Canonical, DeadNodesGoAndEqualNodesMerge) {
  EXPECT_EQ(canonical_text(R"(graph(%x: f32[4], %unused: f32[4]) {
  %dead = exp(%x)
  %a = neg(%x)
  %b = neg(%x)
  %c = add(%a, %b)
  return %c
})"),
            R"(graph(%0: f32[4], %1: f32[4]) {
  %2 = neg(%0)
  %3 = add(%2, %2)
  return %3
}
)");
}

TEST(Canonical, EqualityFollowsThroughMergedOperands) {
  EXPECT_EQ(bytes("graph(%x: f32[4]) { %a = neg(%x) %b = neg(%x) %c = exp(%a) %d = exp(%b) %e = add(%c, %d) "
                  "return %e }"),
            bytes("graph(%x: f32[4]) { %a = neg(%x) %c = exp(%a) %e = add(%c, %c) return %e }"));
}

TEST(Canonical, NodesThatDifferInAnAttributeStayApart) {
  const Canonical canonical =
      canonicalise(parsed("graph(%x: f32[4, 4]) { %a = sum(%x) {dims = [0]} %b = sum(%x) {dims = [1]} %c = "
                          "add(%a, %b) return %c }"));
  EXPECT_EQ(canonical.graph.nodes().size(), 3u);
}

TEST(Canonical, StridesThatSayDenseAreLeftOut) {
  EXPECT_EQ(bytes("graph(%x: f32[1, n, 4]{7, 4, 1}) { return %x {99, 4, 1} }"),
            bytes("graph(%x: f32[1, n, 4]) { return %x }"));
  EXPECT_EQ(bytes("graph(%x: f32[0, 4]{1, 1}) { return %x }"), bytes("graph(%x: f32[0, 4]) { return %x }"));
  EXPECT_NE(bytes("graph(%x: f32[2, 4]{1, 2}) { return %x }"), bytes("graph(%x: f32[2, 4]) { return %x }"));
}

TEST(Canonical, GuardsAreASet) {
  EXPECT_EQ(bytes("graph(%x: f32[n]) symbols(n >= 2, n % 8 == 0, n >= 2) { return %x }"),
            bytes("graph(%x: f32[n]) symbols(n % 8 == 0, n >= 2) { return %x }"));
}

TEST(Canonical, TwiceIsOnce) {
  const Canonical once =
      canonicalise(parsed("graph(%x: f32[4, 4]) { %a = matmul(%x, %x) %b = exp(%a) %c = add(%b, %a) return %c, %a }"));
  EXPECT_EQ(canonicalise(once.graph).bytes, once.bytes);
  EXPECT_EQ(once.bytes, canonical_bytes(once.graph));
  EXPECT_EQ(once.digest, digest_of(once.bytes));
}

TEST(SinkViews, EachConsumerGetsItsOwnViews) {
  const Graph sunk = sink_views(parsed(R"(graph(%x: f32[4, 8], %y: f32[4, 8]) {
  %t = permute(%x) {dims = [1, 0]}
  %r = reshape(%t) {shape = [32]}
  %a = exp(%r)
  %b = neg(%r)
  %c = mul(%r, %r)
  return %a, %b, %c, %r
})"));
  size_t views = 0;
  for (const Node& node : sunk.nodes()) views += node.op->kind == OpKind::view ? 1 : 0;
  EXPECT_EQ(views, 8u);  // two for each of exp, neg, mul and the caller
  const std::vector<std::vector<NodeId>> users = sunk.users();
  for (const Node& node : sunk.nodes()) {
    if (node.op->kind != OpKind::view) continue;
    EXPECT_LE(users[node.results[0]].size(), 1u);
  }
}

TEST(SinkViews, MergingUndoesIt) {
  const Canonical canonical = canonicalise(parsed(R"(graph(%x: f32[4, 8], %y: f32[8, 8]) {
  %t = permute(%x) {dims = [1, 0]}
  %one = full() {dtype = f32, shape = [], value = 1.0}
  %a = matmul(%y, %t)
  %b = add(%t, %one)
  %c = add(%a, %b)
  %d = mul(%c, %one)
  return %d, %t
})"));
  EXPECT_EQ(canonicalise(sink_views(canonical.graph)).bytes, canonical.bytes);
}

TEST(SinkViews, ALongRunOfViewsDoesNotSquareTheGraph) {
  std::string text = "graph(%v0: f32[4, 8]) {\n";
  std::string outputs;
  for (int i = 0; i < 400; ++i) {
    text += fmt::format("%v{} = permute(%v{}) {{dims = [1, 0]}}\n%e{} = exp(%v{})\n", i + 1, i, i, i + 1);
    outputs += fmt::format("{}%e{}", i == 0 ? "" : ", ", i);
  }
  const Graph graph = parsed(text + "return " + outputs + "}");
  EXPECT_LT(sink_views(graph).nodes().size(), 4 * graph.nodes().size());
}

}  // namespace
}  // namespace kiln
