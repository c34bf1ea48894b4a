#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/session.h"

namespace kiln::cli {

/// What runs when a subcommand was chosen.
using Action = std::function<ExitCode(Session& session)>;

/// Adds a subcommand's options to `app`. One function per file; main.cc has the table.
using AddCommand = Action (*)(CLI::App& app);

/// Checks a KEY argument: 1 to 64 hexadecimal digits.
CLI::Validator entry_name();

Action add_status(CLI::App& app);
Action add_stats(CLI::App& app);
Action add_ls(CLI::App& app);
Action add_show(CLI::App& app);
Action add_warm(CLI::App& app);
Action add_reduce(CLI::App& app);
Action add_run(CLI::App& app);
Action add_repro(CLI::App& app);
Action add_explain(CLI::App& app);
Action add_verify(CLI::App& app);
Action add_gc(CLI::App& app);
Action add_clear(CLI::App& app);
Action add_pin(CLI::App& app);
Action add_unpin(CLI::App& app);
Action add_config(CLI::App& app);
Action add_daemon(CLI::App& app);
Action add_doctor(CLI::App& app);
Action add_version(CLI::App& app);

}  // namespace kiln::cli
