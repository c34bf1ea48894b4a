// kiln: inspects, fills and looks after the cache. Each subcommand is a file; the table below lists them.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "backends/libraries.h"
#include "base/nearest.h"
#include "cli/command.h"

namespace kiln::cli {
namespace {

struct CommandRow {
  const char* name;
  const char* sentence;
  AddCommand add;
};

constexpr CommandRow k_commands[] = {
    {"status", "What the daemon is doing, and where its cache is", add_status},
    {"top", "What the daemon builds and tunes, as it goes", add_top},
    {"stats", "What the daemon has counted since it started", add_stats},
    {"ls", "List the cache's entries, newest first", add_ls},
    {"show", "One entry with its keys", add_show},
    {"explain", "Why a graph or key is new: the nearest entry, and what differs", add_explain},
    {"warm", "Fill the cache from graphs, or by running a torch module once", add_warm},
    {"export", "Write a torch module, its kernels and weights, to be run without torch", add_export},
    {"retune", "Race the candidates of programs in the cache again", add_retune},
    {"run", "Compile a graph and run it on made-up inputs", add_run},
    {"bench", "What this machine can do at best, and how close tuned kernels come", add_bench},
    {"repro", "Replay a program that did not agree with torch", add_repro},
    {"reduce", "Shrink a graph that comes out wrong", add_reduce},
    {"verify", "Read every entry back; damaged ones are dropped", add_verify},
    {"gc", "Drop the oldest entries beyond the cache's size", add_gc},
    {"clear", "Drop every entry", add_clear},
    {"pin", "Keep an entry from being dropped by gc", add_pin},
    {"unpin", "Let gc drop an entry again", add_unpin},
    {"pack", "Carry entries to other machines, in one signed file", add_pack},
    {"key", "Make a key that packs are signed with", add_key},
    {"config", "What is configured, and where each value came from", add_config},
    {"daemon", "Start, stop and watch the daemon", add_daemon},
    {"doctor", "Check the installation and say what to mend", add_doctor},
    {"completion", "Print what a shell needs to complete kiln's commands", add_completion},
    {"man", "Write a page of the manual for each command", add_man},
    {"version", "Versions of this program and of what it reads and speaks", add_version},
};

struct GlobalOptions {
  bool json = false, quiet = false;
  int verbosity = 0;
  std::string color = "auto", config_file, cache_directory;
  std::vector<std::string> settings;

  void add(CLI::App& app) {
    app.add_flag("--json", json, "Print one JSON object with a schema_version");
    app.add_flag("-q,--quiet", quiet, "Print data and errors only");
    app.add_flag("-v,--verbose", verbosity, "Say more; repeat for more still");
    app.add_option("--color", color, "When to use colours")->check(CLI::IsMember({"auto", "always", "never"}));
    app.add_option("--config", config_file, "Configuration file instead of the user's")->type_name("FILE");
    app.add_option("--cache-dir", cache_directory, "The cache to use")->type_name("DIR");
    app.add_option("--set", settings, "Configuration over all other, as key=value")
        ->allow_extra_args(false)
        ->type_name("KEY=VALUE");
  }

  Output output() const {
    Output output;
    output.json = json, output.quiet = quiet, output.verbosity = verbosity;
    output.set_color(color == "always"  ? Output::Color::always
                     : color == "never" ? Output::Color::never
                                        : Output::Color::automatic);
    return output;
  }

  Expected<LoadedConfig> load() const {
    std::vector<std::pair<std::string, std::string>> flags;
    for (const std::string& setting : settings) {
      const size_t equals = setting.find('=');
      if (equals == std::string::npos) return invalid_argument("--set {} is not key=value", setting);
      flags.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
    }
    if (!cache_directory.empty()) flags.emplace_back("cache.directory", cache_directory);
    return load_config(
        ConfigSources::from_process(std::move(flags), config_file.empty() ? std::nullopt : std::optional(config_file)));
  }
};

/// "unknown command 'lss', the nearest is 'ls'", when that is what is wrong with the arguments.
std::optional<std::string> unknown_command(int argc, char** argv) {
  std::vector<std::string_view> names;
  for (const CommandRow& row : k_commands) names.emplace_back(row.name);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("-")) continue;
    if (std::find(names.begin(), names.end(), argument) != names.end()) return std::nullopt;
    const std::string_view nearest = nearest_name(argument, names);
    return fmt::format("unknown command '{}'{}", argument.substr(0, 64),
                       nearest.empty() ? "" : fmt::format(", the nearest is '{}'", nearest));
  }
  return std::nullopt;
}

bool is_help(int argc, char** argv) { return argc > 1 && std::string_view(argv[1]) == "help"; }

/// `kiln help show` is `kiln show --help`.
std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!is_help(argc, argv)) return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

int refuse(const CLI::App& app, const CLI::ParseError& problem, const Output& output, int argc, char** argv) {
  const bool is_help_asked = is_help(argc, argv);
  if (is_help_asked) --argc, ++argv;
  const std::optional<std::string> unknown = unknown_command(argc, argv);
  if (problem.get_exit_code() == 0 && !(is_help_asked && unknown)) return app.exit(problem);  // --help, --version
  if (argc == 1) {
    std::fputs(app.help().c_str(), stderr);
    return static_cast<int>(ExitCode::usage);
  }
  const std::string message = unknown.value_or(problem.what());
  std::string path = "kiln";  // to the deepest command that was named: its help is the one that helps
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().back();
    path += " " + at->get_name();
  }
  output.error({StatusCode::invalid_argument, message}, path + " --help says what there is");
  return static_cast<int>(ExitCode::usage);
}

int run(int argc, char** argv) {
  CLI::App app(
      "Kiln compiles parts of deep-learning programs once and keeps the kernels. "
      "Exit status: 0 done, 1 failed, 2 wrong usage, 3 no daemon, 4 damage found, 5 done in part, 6 hits missing.",
      "kiln");
  app.footer("kiln help COMMAND shows what a command takes.");
  app.set_version_flag("--version", "kiln " KILN_VERSION, "Print this program's version");
  app.require_subcommand(1);
  app.fallthrough();
  GlobalOptions options;
  options.add(app);
  std::vector<std::pair<CLI::App*, Action>> actions;
  for (const CommandRow& row : k_commands) {
    CLI::App* command = app.add_subcommand(row.name, row.sentence);
    command->fallthrough();
    CommandLine line(*command);
    actions.emplace_back(command, row.add(line));
  }
  try {
    std::vector<std::string> arguments = arguments_of(argc, argv);
    std::ranges::reverse(arguments);  // CLI11 takes them from the end
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& problem) {
    return refuse(app, problem, options.output(), argc, argv);
  }
  const Output output = options.output();
  auto config = options.load();
  if (!config.ok()) {
    output.error(config.status(), "--config or KILN_CONFIG names another file; configs/kiln.yaml lists the keys");
    return static_cast<int>(ExitCode::usage);
  }
  if (!config->notice.empty()) output.note(config->notice);
  set_library_hints({config->values.libraries_path, config->values.python_path});
  Session session(std::move(*config), options.config_file, output);
  for (const auto& [command, action] : actions) {
    if (command->parsed()) return static_cast<int>(action(session));
  }
  return static_cast<int>(ExitCode::usage);
}

}  // namespace

}  // namespace kiln::cli

int main(int argc, char** argv) {
  try {
    return kiln::cli::run(argc, argv);
  } catch (const std::exception& exception) {  // memory, or a library
    std::fprintf(stderr, "kiln: %s\n", exception.what());
    return static_cast<int>(kiln::cli::ExitCode::failure);
  }
}
