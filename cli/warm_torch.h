#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/session.h"

namespace kiln::cli {

struct WarmTorch {
  std::string source;                         // "module:function"
  bool train = false;                         // the backward too
  bool whole = false;                         // torch.compile(backend="kiln") instead of kiln.compile
  std::vector<std::string> targets = {};      // that each graph is built for besides the host's own
  std::map<std::string, int64_t> shape = {};  // what the function is called with
};

/// Errors: invalid_argument for what does not name a function of a module.
Status check_module_function(const std::string& source);

/// The configuration as the command line has it, for a process that reads the environment.
std::vector<std::pair<std::string, std::string>> configuration_variables(const LoadedConfig& loaded);

/// Runs the module once and gives what kiln.warm says of it; `options.source` is module:function. exit_status: Python's.
Expected<Json> run_module(const Session& session, const WarmTorch& options,
                          const std::vector<std::pair<std::string, std::string>>& variables,
                          int* exit_status = nullptr);

/// What Python's exit status means: what Kiln could not compile ran in torch, the next process will do the same, and so the
/// module is warm in part.
ExitCode exit_code_of_module(int exit_status);

/// Runs the configured Python on kiln.warm (client/python/kiln/warm.py), which runs the module once. Its stderr is
/// this program's; its stdout is one JSON object with the counters of that process.
ExitCode warm_torch(Session& session, const WarmTorch& options);

}  // namespace kiln::cli
