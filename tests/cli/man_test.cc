// The manual's pages, as kiln writes them and man reads them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli_fixture.h"

namespace kiln {
namespace {

using testing::HasSubstr;

class Manual : public Cli {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder());
    const CliResult written = kiln({"man", folder()});
    ASSERT_EQ(written.exit_status, 0) << written.err;
  }
  std::string folder() const { return m_world.directory() / "manual"; }
  std::string page(const std::string& name) const {
    std::ifstream file(folder() + "/" + name + ".1");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  /// Looks for the pages of the commands that the help of `command` lists, and of theirs.
  void expect_pages_below(const std::vector<std::string>& command) {
    std::vector<std::string> help = {"help"};
    help.insert(help.end(), command.begin(), command.end());
    std::istringstream lines(kiln(help).out);
    bool are_commands = false;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string word, name = "kiln";
      words >> word;
      if (are_commands && line.starts_with("  ") && !line.starts_with("   ")) {
        std::vector<std::string> below = command;
        below.push_back(word);
        for (const std::string& each : below) name += "-" + each;
        EXPECT_THAT(page(name), HasSubstr(".SH SYNOPSIS")) << name;
        ++m_pages;
        expect_pages_below(below);
      }
      are_commands =
          (are_commands && !line.empty()) || line.starts_with("Subcommands:") || line.starts_with("SUBCOMMANDS:");
    }
  }

  size_t m_pages = 0;
};

TEST_F(Manual, EveryCommandHasItsPage) {
  expect_pages_below({});
  EXPECT_GT(m_pages, 20);
  EXPECT_THAT(page("kiln-pack-create"), HasSubstr("\\fB\\-\\-sign\\fR \\fIFILE\\fR"));
  EXPECT_THAT(page("kiln"), HasSubstr("\\fB\\-q\\fR, \\fB\\-\\-quiet\\fR"));
}

TEST_F(Manual, ManReadsThePagesWithoutAWarning) {
  if (std::system("man --version > /dev/null 2>&1") != 0 || std::system("groff --version > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "there is no man, or no groff";
  for (const auto& each : std::filesystem::directory_iterator(folder())) {
    const std::string command = "LC_ALL=C.UTF-8 man --warnings -l " + each.path().string() + " 2>&1 > /dev/null";
    FILE* pipe = popen(command.c_str(), "r");
    std::string warnings;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) warnings += static_cast<char>(c);
    EXPECT_EQ(pclose(pipe), 0) << each.path();
    EXPECT_EQ(warnings, "") << each.path();
  }
}

TEST_F(Manual, AFolderThatIsNotThereIsSaid) {
  const CliResult result = kiln({"man", "/nonexistent"});
  EXPECT_NE(result.exit_status, 0);
  EXPECT_THAT(result.err, HasSubstr("/nonexistent/kiln.1 cannot be written"));
}

}  // namespace
}  // namespace kiln
