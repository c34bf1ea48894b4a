#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli_process.h"

namespace kiln {

/// Two matmuls around a gelu, softmax at the end; `rows` makes it another graph.
inline std::string mlp_text(int rows) {
  return "graph(%x: f32[" + std::to_string(rows) + R"(, 65], %w1: f32[65, 33], %w2: f32[33, 10]) {
  %h = matmul(%x, %w1)
  %g = gelu(%h) {approximate = "tanh"}
  %o = matmul(%g, %w2)
  %s = softmax(%o) {dim = 1}
  return %s
}
)";
}

class Cli : public testing::Test {
 protected:
  CliWorld m_world;

  CliResult kiln(std::vector<std::string> arguments) const { return m_world.kiln(std::move(arguments)); }
  std::string graph(int rows) const { return m_world.write("mlp" + std::to_string(rows) + ".kiln", mlp_text(rows)); }
  /// The key of the newest entry of a kind.
  std::string newest_key(const std::string& kind) const {
    const auto listed = kiln({"ls", "--kind", kind, "--limit", "1", "--json"}).json();
    EXPECT_EQ(listed["entries"].size(), 1) << listed;
    return listed["entries"][0]["heads"][0]["key"];
  }
};

}  // namespace kiln
