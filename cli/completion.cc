// kiln completion: what a shell needs to complete kiln's command lines, from the commands themselves.

#include <fmt/format.h>

#include <cstdio>

#include "cli/command.h"

namespace kiln::cli {
namespace {

std::string joined(const std::vector<NextWord>& words) {
  std::string text;
  for (const NextWord& each : words) text += (text.empty() ? "" : " ") + each.word;
  return text;
}

/// A function that follows the words so far to the command that they name, and offers what may come next. Paths and words
/// are names from the command table: nothing in them needs quoting. zsh reads it too, and has a variable `path` of its own.
std::string bash_script(const std::vector<CommandWords>& commands) {
  std::string paths, offers;
  for (const CommandWords& command : commands) {
    if (command.path != commands.front().path) paths += (paths.empty() ? "'" : " | '") + command.path + "'";
    offers += fmt::format("    '{}') words='{}' options='{}' ;;\n", command.path, joined(command.commands),
                          joined(command.options));
  }
  return fmt::format(R"(_kiln() {{
  local command={0} word words options current=${{COMP_WORDS[COMP_CWORD]}}
  for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
    case "$command $word" in
      {1}) command="$command $word" ;;
    esac
  done
  case $command in
{2}  esac
  case $current in
    -*) words="$options {3}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _kiln {0}
)",
                     commands.front().path, paths, offers, joined(commands.front().options));
}

}  // namespace

Action add_completion(CommandLine& line) {
  auto shell = std::make_shared<std::string>();
  line.option("SHELL", *shell, "bash or zsh", {.check = one_of({"bash", "zsh"}), .is_required = true});
  return [line, shell](Session& session) {
    std::string script = bash_script(line.all_words());
    if (*shell == "zsh") {
      script.insert(0, "#compdef kiln\nautoload -U +X bashcompinit && bashcompinit\n");
      // As a file of zsh's own, which the first tab loads: that tab is answered, too.
      script += "[[ ${funcstack[1]} != _kiln ]] || _bash_complete -o default -F _kiln\n";
    }
    if (session.out().json) {
      session.out().print_json({{"shell", *shell}, {"script", script}});
    } else {
      std::fputs(script.c_str(), stdout);
    }
    return ExitCode::ok;
  };
}

}  // namespace kiln::cli
