// Graphs that once came out wrong: regressions/ has one file for each, named after what was wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "frontend/text/text.h"
#include "tests/fuzz/graphs/graph_runner.h"

namespace kiln::fuzz {
namespace {

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(REGRESSIONS)) names.push_back(file.path().stem());
  std::ranges::sort(names);
  return names;
}

class Regression : public testing::TestWithParam<std::string> {};

TEST_P(Regression, IsRight) {
  std::ifstream file(std::string(REGRESSIONS "/") + GetParam() + ".kiln");
  std::stringstream text;
  text << file.rdbuf();
  const auto graph = parse_text(text.str());
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  const Outcome outcome = check_interpreted(*graph);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_EQ(outcome.compared, outcome.determined);
}

INSTANTIATE_TEST_SUITE_P(Graphs, Regression, testing::ValuesIn(names()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

}  // namespace
}  // namespace kiln::fuzz
