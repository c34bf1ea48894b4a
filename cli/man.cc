// kiln man: the manual's pages, from the commands themselves. What a page says beyond the help is in docs/cli.md.

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "cli/command.h"

namespace kiln::cli {
namespace {

/// Text that roff prints as it is.
std::string plain(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  const bool is_request = escaped.starts_with('.') || escaped.starts_with('\'');
  return is_request ? "\\&" + escaped : escaped;
}

std::string bold(std::string_view text) { return "\\fB" + plain(text) + "\\fR"; }
std::string slanted(std::string_view text) { return "\\fI" + plain(text) + "\\fR"; }

/// "kiln pack create" is kiln-pack-create.
std::string page_name(std::string path) {
  std::ranges::replace(path, ' ', '-');
  return path;
}

std::string section(const char* title, const std::vector<NextWord>& words, bool are_values = false) {
  if (words.empty()) return "";
  std::string text = fmt::format(".SH {}\n", title);
  for (const NextWord& each : words) {
    text += ".TP\n";
    if (!each.also.empty()) text += bold(each.also) + ", ";
    text += are_values ? slanted(each.word) : bold(each.word);
    if (!each.value.empty()) text += " " + slanted(each.value);
    text += "\n" + plain(each.help) + "\n";
  }
  return text;
}

std::string page(const CommandWords& command, const CommandWords& outermost) {
  const std::string name = page_name(command.path);
  std::string capitals = name;
  std::ranges::transform(capitals, capitals.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; });
  const bool is_first = command.path == outermost.path;
  std::string text = fmt::format(
      ".TH \"{}\" 1 \"\" \"kiln {}\" \"Kiln\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}", plain(capitals), KILN_VERSION,
      plain(name), is_first ? "compiles deep\\-learning programs once" : plain(command.help), bold(command.path));
  if (!command.options.empty()) text += " [" + slanted("option") + "]...";
  if (!command.commands.empty()) text += " " + slanted("command");
  for (const NextWord& each : command.arguments) text += " " + slanted(each.word);
  text += "\n";
  if (is_first) text += ".SH DESCRIPTION\n" + plain(command.help) + "\n";
  text += section("ARGUMENTS", command.arguments, true) + section("COMMANDS", command.commands) +
          section("OPTIONS", command.options);
  text += ".SH SEE ALSO\n";
  if (!is_first) text += fmt::format(".BR {} (1)\nhas the options that all commands take.\n", plain(outermost.path));
  for (const NextWord& each : command.commands)
    text += fmt::format(".BR {} (1)\n", plain(page_name(command.path + " " + each.word)));
  return text;
}

Status write_page(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  if (file << text << std::flush) return {};
  return error(StatusCode::unavailable, "{} cannot be written: {}", path, std::strerror(errno));
}

}  // namespace

Action add_man(CommandLine& line) {
  auto folder = std::make_shared<std::string>();
  line.option("DIR", *folder, "The folder that the pages go to", {.is_required = true});
  return [line, folder](Session& session) {
    const std::vector<CommandWords> commands = line.all_words();
    Json pages = Json::array();
    for (const CommandWords& command : commands) {
      const std::string path = fmt::format("{}/{}.1", *folder, page_name(command.path));
      if (const Status written = write_page(path, page(command, commands.front())); !written.ok())
        return session.fail(written);
      pages.push_back(path);
    }
    if (session.out().json) session.out().print_json({{"pages", pages}});
    return ExitCode::ok;
  };
}

}  // namespace kiln::cli
