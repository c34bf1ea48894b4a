#pragma once

#include <functional>
#include <memory>

#include "cli/command_line.h"
#include "cli/session.h"

namespace kiln::cli {

/// What runs when a subcommand was chosen.
using Action = std::function<ExitCode(Session& session)>;

/// Declares what a subcommand takes. One function per file; main.cc has the table.
using AddCommand = Action (*)(CommandLine& line);

Action add_status(CommandLine& line);
Action add_top(CommandLine& line);
Action add_stats(CommandLine& line);
Action add_ls(CommandLine& line);
Action add_show(CommandLine& line);
Action add_warm(CommandLine& line);
Action add_export(CommandLine& line);
Action add_retune(CommandLine& line);
Action add_reduce(CommandLine& line);
Action add_run(CommandLine& line);
Action add_repro(CommandLine& line);
Action add_explain(CommandLine& line);
Action add_verify(CommandLine& line);
Action add_gc(CommandLine& line);
Action add_clear(CommandLine& line);
Action add_pin(CommandLine& line);
Action add_unpin(CommandLine& line);
Action add_pack(CommandLine& line);
Action add_key(CommandLine& line);
Action add_bench(CommandLine& line);
Action add_config(CommandLine& line);
Action add_daemon(CommandLine& line);
Action add_doctor(CommandLine& line);
Action add_completion(CommandLine& line);
Action add_man(CommandLine& line);
Action add_version(CommandLine& line);

}  // namespace kiln::cli
