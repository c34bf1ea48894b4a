// kiln warm with a manifest of graphs. tests/client/python has those of models.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli_fixture.h"

namespace kiln {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* k_of_two_sizes = R"(
targets: [x86-64-v2, x86-64-v3]
graphs:
  - file: sizes.kiln
    symbols: [{s0: 3}, {s0: 5}]
  - file: mlp7.kiln
)";

class ManifestTest : public Cli {
 protected:
  void SetUp() override {
    m_world.write("sizes.kiln", "graph(%x: f32[s0, 8]) {\n  %y = relu(%x)\n  return %y\n}\n");
    graph(7);
  }
  CliResult warm(const std::string& manifest, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"warm", m_world.write("manifest.yaml", manifest)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return kiln(arguments);
  }
};

TEST_F(ManifestTest, EachSizeOfAGraphIsBuiltForEachTargetAndGoesIntoThePack) {
  const std::string pack = m_world.directory() / "out.kpack";
  const CliResult result = warm(k_of_two_sizes, {"--json", "--pack", pack});
  ASSERT_EQ(result.exit_status, 0) << result.err;
  const auto warmed = result.json();
  EXPECT_EQ(warmed["asked"], 3);
  EXPECT_EQ(warmed["warmed"], 3);
  EXPECT_EQ(warmed["graphs"][1]["symbols"]["s0"], 5);
  for (const char* target : {"x86-64-v2", "x86-64-v3"}) {
    const auto listed = kiln({"ls", "--target", target, "--kind", "program", "--json"}).json();
    EXPECT_GE(listed["matched"], 2) << target;
  }
  EXPECT_GT(kiln({"pack", "show", pack, "--json"}).json()["keys"], 0);
}

TEST_F(ManifestTest, TargetsOfTheCommandLineTakeThePlaceOfItsOwn) {
  ASSERT_EQ(warm(k_of_two_sizes, {"--target", "x86-64-v2"}).exit_status, 0);
  EXPECT_GT(kiln({"ls", "--target", "x86-64-v2", "--kind", "program", "--json"}).json()["matched"], 0);
  EXPECT_EQ(kiln({"ls", "--target", "x86-64-v3", "--kind", "program", "--json"}).json()["matched"], 0);
}

TEST_F(ManifestTest, WhatIsWrongIsSaidWithItsLine) {
  const std::pair<const char*, const char*> wrong[] = {
      {"graphs:\n  - fil: a\n", "manifest.yaml:2: unknown key 'fil', the nearest is 'file'"},
      {"grahps: []\n", "manifest.yaml:1: unknown key 'grahps', the nearest is 'graphs'"},
      {"graphs: [{tune: true}]\n", "manifest.yaml:1: 'file' is missing"},
      {"graphs:\n  - file: sizes.kiln\n    symbols: {s0: 3}\n", "manifest.yaml:3: expected a list"},
      {"graphs:\n  - file: sizes.kiln\n    symbols: [{s0: many}]\n", "manifest.yaml:3: bad conversion"},
      {"models:\n  - source: a:b\n    modes: [think]\n", "manifest.yaml:3: mode 'think' is neither infer nor train"},
      {"targets: [x86-64-v2]\n", "manifest.yaml:1: neither graphs nor models are in it"},
      {"- graphs\n", "manifest.yaml:1: expected a map"},
      {"graphs: [\n", "manifest.yaml:2: "},
      {"targets: [x86-64-v9]\ngraphs: [{file: mlp7.kiln}]\n", "no target is called x86-64-v9"},
  };
  for (const auto& [manifest, sentence] : wrong) {
    const CliResult result = warm(manifest);
    EXPECT_EQ(result.exit_status, 1) << manifest;
    EXPECT_THAT(result.err, HasSubstr(sentence)) << manifest;
  }
}

TEST_F(ManifestTest, MoreSizesThanTheLimitAreRefused) {
  std::string manifest = "graphs:\n  - file: sizes.kiln\n    symbols: [";
  for (int i = 0; i < 4'200; ++i) manifest += "{s0: " + std::to_string(i) + "}, ";
  const CliResult result = warm(manifest + "]\n");
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, HasSubstr("manifest.yaml:2: more than 4096 graphs and models"));
}

TEST_F(ManifestTest, OneOfGigabytesIsRefusedUnread) {
  const std::string file = m_world.write("manifest.yaml", "graphs: [{file: mlp7.kiln}]\n");
  std::filesystem::resize_file(file, uintmax_t{2} << 30);
  const CliResult result = kiln({"warm", file});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, HasSubstr("manifest.yaml has more than"));
}

/// It is read with its user's rights, and what it names only as a graph: a file that is none shows nothing of itself.
TEST_F(ManifestTest, FilesThatAreNoGraphsAreNotShown) {
  m_world.write("secret", "hunter2 hunter2\n");
  for (const char* file : {"./../../../../../../../../dev/zero", "/dev/zero", "secret", ".", "missing/../secret"}) {
    const CliResult result = warm("graphs: [{file: " + std::string(file) + "}]\n");
    EXPECT_EQ(result.exit_status, 1) << file;
    EXPECT_THAT(result.err, HasSubstr(file)) << file;
    EXPECT_THAT(result.out + result.err, Not(HasSubstr("hunter2 hunter2"))) << file;
  }
}

TEST_F(ManifestTest, AGraphThatFailsLeavesTheOthersWarmed) {
  const CliResult result = warm("graphs: [{file: none.kiln}, {file: mlp7.kiln}]\n");
  EXPECT_EQ(result.exit_status, 5);
  EXPECT_THAT(result.err, HasSubstr("none.kiln"));
}

}  // namespace
}  // namespace kiln
