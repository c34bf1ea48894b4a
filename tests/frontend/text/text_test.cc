#include "frontend/text/text.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/limits.h"
#include "frontend/infer/bind_symbols.h"
#include "frontend/ops/op.h"

namespace kiln {
namespace {

std::string error_of(std::string_view text) {
  Expected<Graph> graph = parse_text(text);
  return graph.ok() ? "parsed" : graph.status().message();
}

std::string round_trip(std::string_view text) {
  Expected<Graph> graph = parse_text(text);
  return graph.ok() ? print_text(*graph) : graph.status().to_string();
}

constexpr std::string_view k_block =
    R"(graph(%x: f32[s0, 768], %w: f32[768, 3072]{1, 768}, %b: f32[3072]) symbols(s0 >= 2) {
  %h = matmul(%x, %w)
  %y, %mean, %2rstd = layer_norm(%h, %b, none) {eps = 1e-05, normalized_rank = 1}
  return %y, %mean {1, s0}
}
)";

TEST(Text, WhatIsPrintedReadsBackByteForByte) {
  std::string text(k_block);
  text.replace(text.find("%mean {1, s0}"), 13, "%mean {1, 1}");
  EXPECT_EQ(round_trip(text), text);
}

TEST(Text, TypesAreInferredAndSymbolsStaySymbolic) {
  Graph graph = parse_text("graph(%x: f32[s0, 8], %w: f32[8, 4]) { %y = matmul(%x, %w) return %y }").value();
  EXPECT_EQ(graph.type(graph.outputs()[0]).to_string(), "f32[s0, 4]");
  EXPECT_EQ(graph.symbols(), std::vector<std::string>{"s0"});
}

TEST(Text, ValuesWithoutGoodNamesAreNumbered) {
  Graph graph =
      parse_text("graph(%0: f32[2], %y.1: f32[2]) { %7 = add(%0, %y.1) %z = add(%7, %7) return %z, %7 }").value();
  const std::string once = print_text(graph);
  EXPECT_EQ(once, R"(graph(%0: f32[2], %y.1: f32[2]) {
  %2 = add(%0, %y.1)
  %z = add(%2, %2)
  return %z, %2
}
)");
  EXPECT_EQ(round_trip(once), once);
  graph.set_name(graph.inputs()[0], "y.1");  // taken twice: the first one keeps it
  EXPECT_EQ(round_trip(print_text(graph)), print_text(graph));
  graph.set_name(graph.inputs()[0], "not a name");
  EXPECT_EQ(print_text(graph), once);
}

TEST(Text, AttributesOfEveryTypeRoundTrip) {
  const std::string text = R"(graph(%x: f32[s0, 12]) symbols(s0) {
  %a = full() {dtype = i64, shape = [3, 2*s0], value = 1.5}
  %b = full() {dtype = f32, shape = [], value = -inf}
  %c = full() {dtype = f32, shape = [], value = nan}
  %d = permute(%x) {dims = [1, 0]}
  %e = sum(%x) {dims = [0], keep_dims = true}
  %f = reshape(%x) {shape = [s0, 3, 4]}
  return %a, %b, %c, %d, %e, %f
}
)";
  EXPECT_EQ(round_trip(text), text);
}

TEST(Text, ExtentsMayBeSymbolic) {
  const std::string text = R"(graph(%x: f32[s0, 12]) symbols(s0 >= 1) {
  %a = slice(%x) {dim = 0, end = s0, start = s0 - 1, step = 1}
  return %a
}
)";
  EXPECT_EQ(round_trip(text), text);
}

TEST(Text, GuardsOfEveryRelationRoundTripWithTheOrderOfSymbols) {
  const std::string text =
      R"(graph(%x: f32[n, batch]) symbols(batch, n >= 2, batch != n, (batch + n) % 8 == 0, n % 4 == 0, batch*n == 64) {
  return %x
}
)";
  Graph graph = parse_text(text).value();
  EXPECT_EQ(graph.symbols(), (std::vector<std::string>{"batch", "n"}));
  ASSERT_EQ(graph.guards().size(), 5u);
  EXPECT_EQ(graph.guards()[0].dim, Dim::symbol(1) - 2);
  EXPECT_EQ(graph.guards()[2].modulus, 8);
  const std::string once = print_text(graph);
  EXPECT_EQ(round_trip(once), once);
  EXPECT_EQ(parse_text(once)->guards(), graph.guards());
  EXPECT_EQ(parse_text(once)->symbols(), graph.symbols());
}

TEST(Text, ManyInputsTakeALineEach) {
  std::string text = "graph(";
  for (int i = 0; i < 12; ++i) text += fmt::format("{}%w{}: f32[768, 768]", i == 0 ? "" : ", ", i);
  text += ") { return %w3 }";
  const std::string printed = round_trip(text);
  EXPECT_NE(printed.find("graph(\n  %w0: f32[768, 768],\n  %w1"), std::string::npos) << printed;
  EXPECT_EQ(round_trip(printed), printed);
}

TEST(Text, AnnotationsAreCheckedAndCommentsSkipped) {
  EXPECT_EQ(error_of("graph(%x: f32[2]) { # nothing\n %y: f32[2] = add(%x, %x) # more\n return %y }"), "parsed");
  EXPECT_EQ(error_of("graph(%x: f32[2]) {\n  %y: f32[3] = add(%x, %x)\n  return %y\n}"),
            "2:16: add: result 0 is annotated f32[3], inferred f32[2]");
}

TEST(Text, ExtentsOfAnAnnotationThatDependOnSymbolsAreGuarded) {
  const auto annotated = [](std::string_view type) {
    return fmt::format("graph(%x: f32[s0, 2]) symbols(s0, s1) {{\n  %y: {} = add(%x, %x)\n  return %y\n}}", type);
  };
  const Graph graph = parse_text(annotated("f32[4*s1, 2]")).value();
  ASSERT_EQ(graph.guards().size(), 1U);
  EXPECT_EQ(graph.guards()[0].relation, Guard::Relation::equal);
  EXPECT_TRUE(bind_symbols(graph, std::vector<int64_t>{8, 2}).ok());
  EXPECT_FALSE(bind_symbols(graph, std::vector<int64_t>{8, 3}).ok());
  EXPECT_EQ(error_of(annotated("f32[s0 + 1, 2]")),
            "2:24: add: result 0 is annotated f32[s0 + 1, 2], inferred f32[s0, 2]");
}

TEST(Text, ResultTypesArePrintedOnDemandAndReadBack) {
  Graph graph = parse_text("graph(%x: f32[2]) { %y = add(%x, %x) return %y }").value();
  const std::string typed = print_text(graph, {.result_types = true});
  EXPECT_NE(typed.find("%y: f32[2] = add"), std::string::npos);
  EXPECT_EQ(round_trip(typed), print_text(graph));
}

TEST(Text, ErrorsSayWhereWhatAndWhatWasExpected) {
  EXPECT_EQ(error_of(""), "1:1: expected 'graph', got the end of the text");
  EXPECT_EQ(error_of("graph(%x: f32[2]) {\n  return %y\n}"), "2:10: value %y is not defined before it is used");
  EXPECT_EQ(error_of("graph(%x: f31[2]) { return %x }"), "1:11: expected a dtype such as f32, got 'f31'");
  EXPECT_EQ(error_of("graph(%x: f32[2) { return %x }"), "1:16: expected ',' or ']', got ')'");
  EXPECT_EQ(error_of("graph(%x: f32[2], %x: f32[2]) { return %x }").substr(5), " value %x is defined twice");
  EXPECT_EQ(error_of("graph() { return } x"), "1:20: expected the end of the text, got 'x'");
  EXPECT_EQ(error_of("graph(%x: f32[2]) { %y = ad(%x, %x) return %y }"), "1:26: unknown op 'ad', nearest is 'add'");
  EXPECT_EQ(error_of("graph(%x: f32[2]) { %y, %z = add(%x, %x) return %y }"),
            "1:30: add: 2 results are named, expected 1");
  EXPECT_EQ(error_of("graph(%x: f32[2, 3]) { %y = permute(%x) {dim = [1, 0]} return %y }"),
            "1:42: permute: unknown attribute 'dim', nearest is 'dims'");
  EXPECT_EQ(error_of("graph(%x: f32[2, 3]) { %y = permute(%x) {dims = true} return %y }"),
            "1:49: expected '[', got 'true'");
  EXPECT_EQ(error_of("graph(%x: f32[n]) { %y = reshape(%x) {shape = [m]} return %y }"),
            "1:48: unknown symbol 'm', nearest is 'n'");
  EXPECT_EQ(error_of("graph(%x: f32[\"a]) { return %x }"), "1:15: expected an integer or a symbol, got '\"'");
}

TEST(Text, AnOpThatDoesNotFitItsOperandsIsReportedAtItsPlace) {
  const std::string message = error_of("graph(%x: f32[2, 3]) {\n  %y = matmul(%x, %x)\n  return %y\n}");
  EXPECT_EQ(message.substr(0, 13), "2:8: matmul: ") << message;
}

TEST(Text, LimitsHoldBeforeMemoryIsSpent) {
  EXPECT_NE(error_of("graph(%x: f32[1099511627777]) { return %x }").find("the limit is"), std::string::npos);
  EXPECT_NE(error_of("graph(%x: f32[99999999999999999999]) { return %x }").find("64 bits"), std::string::npos);
  EXPECT_NE(error_of("graph(%x: f32[s*s*s*s*s*s*s*s*s*s*s*s*s*s*s*s*s]) { return %x }").find("overflows"),
            std::string::npos);
  EXPECT_NE(error_of("graph(%x: f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]) { return %x }").find("rank is 17"),
            std::string::npos);
  EXPECT_NE(error_of("graph(%" + std::string(300, 'a') + ": f32[1]) { return }").find("more than 256 bytes"),
            std::string::npos);
  std::string wide = "graph(";
  for (size_t i = 0; i <= limits::k_symbols; ++i) wide += fmt::format("{}%{}: f32[s{}]", i == 0 ? "" : ", ", i, i);
  EXPECT_NE(error_of(wide + ") { return }").find("more than 1024 symbols"), std::string::npos);
}

TEST(Text, DeepGraphsNeedNoDeepStack) {
  std::string text = "graph(%v0: f32[2]) {\n";
  constexpr int k_nodes = 50'000;
  for (int i = 0; i < k_nodes; ++i) text += fmt::format("%v{} = neg(%v{})\n", i + 1, i);
  text += fmt::format("return %v{} }}", k_nodes);
  Expected<Graph> graph = parse_text(text);
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(graph->nodes().size(), static_cast<size_t>(k_nodes));
}

}  // namespace
}  // namespace kiln
