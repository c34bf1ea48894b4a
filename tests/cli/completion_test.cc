// What bash offers, by the script that kiln prints for it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "cli_fixture.h"

namespace kiln {
namespace {

using testing::HasSubstr;

/// What bash offers for the last of the words after `kiln`.
std::string offered_by(const std::string& script, const std::string& words, int last) {
  const std::string command = "bash -c 'source " + script + "; COMP_WORDS=(kiln " + words +
                              "); COMP_CWORD=" + std::to_string(last) + "; _kiln; echo -n ${COMPREPLY[@]}'";
  FILE* pipe = popen(command.c_str(), "r");
  std::string offered;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) offered += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0);
  return offered;
}

TEST_F(Cli, BashCompletesCommandsAndOptions) {
  const std::string script = m_world.write("completion", kiln({"completion", "bash"}).out);
  EXPECT_EQ(offered_by(script, "pac", 1), "pack");
  EXPECT_EQ(offered_by(script, "--json pack cr", 3), "create");
  EXPECT_EQ(offered_by(script, "pack create file --si", 4), "--sign");
  EXPECT_EQ(offered_by(script, "show --as", 2), "--asm");
  EXPECT_THAT(offered_by(script, "ls --", 2), HasSubstr("--json"));
  EXPECT_EQ(offered_by(script, "nothing x", 2), "");
}

}  // namespace
}  // namespace kiln
