#include "frontend/reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "frontend/ops/op.h"
#include "frontend/text/text.h"

namespace kiln {
namespace {

/// A cumulative sum in the middle of ops that have nothing to do with it; strides, several outputs.
constexpr std::string_view k_text = R"(graph(%x: f32[4, 8]{1, 4}, %w: f32[8, 6], %v: f32[6, 8]) {
  %a = exp(%x)
  %h = matmul(%a, %w)
  %b = gelu(%h) {approximate = "none"}
  %c = matmul(%b, %v)
  %d = cumsum(%c) {dim = 1}
  %e = mul(%d, %x)
  %f = sum(%e) {dims = [1], keep_dims = false}
  %g = tanh(%f)
  return %h, %e {1, 4}, %g
}
)";

bool has(const Graph& graph, std::string_view op) {
  return std::ranges::any_of(graph.nodes(), [&](const Node& node) { return node.op->name == op; });
}

TEST(Reduce, OnlyWhatIsWrongRemains) {
  const Graph graph = parse_text(k_text).value();
  const Graph smaller = reduce(graph, [](const Graph& candidate) { return has(candidate, "cumsum"); });
  EXPECT_EQ(print_text(smaller), R"(graph(%c: f32[4, 8]) {
  %d = cumsum(%c) {dim = 1}
  return %d
}
)");
}

TEST(Reduce, StridesThatMatterStay) {
  const Graph graph = parse_text(k_text).value();
  const Graph smaller = reduce(graph, [](const Graph& candidate) {
    const auto& strides = candidate.output_strides();
    return std::ranges::any_of(strides, [](const auto& each) { return !each.empty(); });
  });
  ASSERT_EQ(smaller.outputs().size(), 1U);
  EXPECT_FALSE(smaller.output_strides()[0].empty());
  EXPECT_LE(smaller.nodes().size(), 1U) << print_text(smaller);
}

TEST(Reduce, EachTryIsWellFormedAndNothingIsTakenThatIsRight) {
  const Graph graph = parse_text(k_text).value();
  size_t tries = 0;
  const Graph same = reduce(graph, [&](const Graph& candidate) {
    ++tries;
    EXPECT_TRUE(parse_text(print_text(candidate)).ok()) << print_text(candidate);
    return false;
  });
  EXPECT_GT(tries, 8U);
  EXPECT_EQ(print_text(same), print_text(graph));
}

}  // namespace
}  // namespace kiln
