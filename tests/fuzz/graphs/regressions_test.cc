// Graphs that once came out wrong: regressions/ has one file for each, named after what was wrong.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "frontend/text/text.h"
#include "tests/fuzz/graphs/compiled_graphs.h"

namespace kiln::fuzz {
namespace {

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(REGRESSIONS)) names.push_back(file.path().stem());
  std::ranges::sort(names);
  return names;
}

class Regression : public testing::TestWithParam<std::string> {};

Expected<Graph> read_regression(const std::string& name) {
  std::ifstream file(REGRESSIONS "/" + name + ".kiln");
  std::stringstream text;
  text << file.rdbuf();
  return parse_text(text.str());
}

TEST_P(Regression, IsRight) {
  const auto graph = read_regression(GetParam());
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  const Outcome outcome = check_interpreted(*graph);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_GT(outcome.determined, 0U);
}

TEST_P(Regression, IsRightCompiledAndAfterEviction) {
  const auto graph = read_regression(GetParam());
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  const auto directory = std::filesystem::temp_directory_path() / fmt::format("{}_{}", GetParam(), getpid());
  {
    const auto compiled = CompiledGraphs::create(directory, KILN_EXECUTOR_PATH);
    ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
    const Outcome outcome = (*compiled)->check(*graph);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  }
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Graphs, Regression, testing::ValuesIn(names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace kiln::fuzz
