// What bash and zsh offer, by the scripts that kiln prints for them.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "cli_fixture.h"

namespace kiln {
namespace {

using testing::HasSubstr;

/// What a command of the shell's prints.
std::string printed_by(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0);
  return text;
}

/// What bash offers for the last of the words after `kiln`.
std::string offered_by(const std::string& script, const std::string& words, int last) {
  return printed_by("bash -c 'source " + script + "; COMP_WORDS=(kiln " + words +
                    "); COMP_CWORD=" + std::to_string(last) + "; _kiln; echo -n ${COMPREPLY[@]}'");
}

/// Types its second argument and a tab into a zsh that has run the first once it can complete, and prints what the line is then. Completion runs in
/// the line editor alone, which needs a terminal.
constexpr const char* k_typist = R"(
zmodload zsh/zpty
zpty shell "TERM=dumb zsh -f -i"
zpty -w shell 'PS1=; unsetopt prompt_sp; '$1'; bindkey -e; print rea""dy'
zpty -r -m shell out '*ready*'
zpty -w -n shell "$2"$'\t'
zpty -w -n shell $'\C-aprint -r -- "<\C-e>" end\n'
zpty -r -m shell out '*> end*'
print -rn -- "${${out##*\<}%%\>*}"
zpty -d shell
)";

TEST_F(Cli, BashCompletesCommandsAndOptions) {
  const std::string script = m_world.write("completion", kiln({"completion", "bash"}).out);
  EXPECT_EQ(offered_by(script, "pac", 1), "pack");
  EXPECT_EQ(offered_by(script, "--json pack cr", 3), "create");
  EXPECT_EQ(offered_by(script, "pack create file --si", 4), "--sign");
  EXPECT_EQ(offered_by(script, "show --as", 2), "--asm");
  EXPECT_THAT(offered_by(script, "ls --", 2), HasSubstr("--json"));
  EXPECT_EQ(offered_by(script, "nothing x", 2), "");
}

/// Read by who wants it, or found where zsh looks for completions.
TEST_F(Cli, ZshCompletesCommandsAndOptions) {
  if (std::system("command -v zsh >/dev/null") != 0) GTEST_SKIP() << "there is no zsh";
  const std::string script = m_world.write("_kiln", kiln({"completion", "zsh"}).out);
  const std::string typist = m_world.write("typist", k_typist);
  const std::string start = "autoload -Uz compinit; compinit -u -D";
  for (const std::string& entering : {fmt::format("{}; source {}", start, script),
                                      fmt::format("fpath=({} $fpath); {}", m_world.directory().string(), start)}) {
    const auto line_after = [&](const std::string& words) {
      return printed_by(fmt::format("timeout 60 zsh -f {} '{}' '{}'", typist, entering, words));
    };
    EXPECT_EQ(line_after("kiln pac"), "kiln pack") << entering;
    EXPECT_EQ(line_after("kiln --json pack cr"), "kiln --json pack create") << entering;
    EXPECT_EQ(line_after("kiln pack create file --si"), "kiln pack create file --sign") << entering;
    EXPECT_EQ(line_after("kiln nothing x"), "kiln nothing x") << entering;
  }
}

}  // namespace
}  // namespace kiln
