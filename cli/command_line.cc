#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/session.h"

namespace kiln::cli {

namespace {

CLI::Option* shaped(CLI::Option* option, const ValueForm& form) {
  if (form.name != nullptr) option->type_name(form.name);
  if (form.check.why_not) option->check(CLI::Validator(form.check.why_not, form.check.description));
  option->required(form.is_required);
  return option;
}

void add_words(const CLI::App& app, const std::string& path, std::vector<CommandWords>& all) {
  CommandWords words{.path = path, .help = app.get_description()};
  const auto inner = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* each : inner) words.commands.push_back({each->get_name(), each->get_description()});
  for (const CLI::Option* each : app.get_options()) {
    if (each->get_positional()) words.arguments.push_back({each->get_name(true), each->get_description()});
    const std::string also = each->get_snames().empty() ? "" : "-" + each->get_snames().front();
    const std::string value = each->get_items_expected_max() == 0 ? "" : each->get_type_name();
    for (const std::string& name : each->get_lnames())
      words.options.push_back({"--" + name, each->get_description(), also, value});
  }
  all.push_back(std::move(words));
  for (const CLI::App* each : inner) add_words(*each, path + " " + each->get_name(), all);
}

}  // namespace

Check one_of(std::vector<std::string> words) {
  const std::string list = fmt::format("{}", fmt::join(words, ","));
  return {[words = std::move(words), list](const std::string& text) {
            return std::ranges::find(words, text) != words.end() ? "" : fmt::format("{} not in {{{}}}", text, list);
          },
          ""};
}

Check in_range(uint32_t least, uint32_t most) {
  return {[=](const std::string& text) {
            uint32_t value = 0;
            const bool is_right = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
            return is_right ? "" : fmt::format("Value {} not in range {} to {}", text, least, most);
          },
          fmt::format("INT in [{} - {}]", least, most)};
}

Check entry_name() {
  return {[](const std::string& text) {
            return is_entry_name(text) ? "" : fmt::format("'{}' is no key: expected 1 to 64 hexadecimal digits", text);
          },
          ""};
}

void CommandLine::flag(const char* name, bool& set, const char* help) { m_app->add_flag(name, set, help); }

void CommandLine::option(const char* name, std::string& value, const char* help, const ValueForm& form) {
  shaped(m_app->add_option(name, value, help), form);
}

void CommandLine::option(const char* name, uint32_t& value, const char* help, const ValueForm& form) {
  shaped(m_app->add_option(name, value, help), form);
}

void CommandLine::option(const char* name, uint64_t& value, const char* help, const ValueForm& form) {
  shaped(m_app->add_option(name, value, help), form);
}

void CommandLine::option(const char* name, std::vector<std::string>& values, const char* help, const ValueForm& form) {
  CLI::Option* option = shaped(m_app->add_option(name, values, help), form);
  if (form.delimiter != 0) option->delimiter(form.delimiter);
  if (name[0] == '-') option->allow_extra_args(false);
}

CommandLine CommandLine::command(const char* name, const char* help) {
  m_app->require_subcommand(1);
  return CommandLine(*m_app->add_subcommand(name, help)->fallthrough());
}

bool CommandLine::is_chosen() const { return m_app->parsed(); }

std::vector<CommandWords> CommandLine::all_words() const {
  const CLI::App* outermost = m_app;
  while (outermost->get_parent() != nullptr) outermost = outermost->get_parent();
  std::vector<CommandWords> all;
  add_words(*outermost, outermost->get_name(), all);
  return all;
}

}  // namespace kiln::cli
