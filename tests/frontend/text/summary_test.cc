#include "frontend/text/summary.h"

#include <gtest/gtest.h>

#include "frontend/text/text.h"

namespace kiln {
namespace {

std::string summary_of(const char* text) {
  const auto graph = parse_text(text);
  EXPECT_TRUE(graph.ok()) << graph.status().to_string();
  return graph.ok() ? summary(*graph) : "";
}

TEST(Summary, WhatTakesLongComesFirstAndViewsLast) {
  EXPECT_EQ(summary_of("graph(%x: f32[8, 8]) {\n  %a = exp(%x)\n  %b = exp(%a)\n  %t = permute(%b) {dims = [1, 0]}\n"
                       "  %m = matmul(%b, %t)\n  return %m\n}\n"),
            "matmul, 2 exp, permute -> f32[8, 8]");
}

TEST(Summary, IsShortWhateverTheGraph) {
  EXPECT_EQ(summary_of("graph(%x: f32[s0, 8]) symbols(s0 >= 2) {\n  %a = exp(%x)\n  %b = tanh(%a)\n  %c = sin(%b)\n"
                       "  %d = cos(%c)\n  %e = abs(%d)\n  return %a, %b, %e\n}\n"),
            "abs, cos, exp, sin, 1 other -> f32[s0, 8], f32[s0, 8], …");
}

}  // namespace
}  // namespace kiln
