#pragma once

#include <string>
#include <vector>

#include "cli/session.h"

namespace kiln::cli {

struct WarmTorch {
  std::string source;                     // "module:function"
  bool train = false;                     // the backward too
  bool whole = false;                     // torch.compile(backend="kiln") instead of kiln.compile
  std::vector<std::string> targets = {};  // that each graph is built for besides the host's own
};

/// Runs the configured Python on kiln.warm (client/python/kiln/warm.py), which runs the module once. Its stderr is
/// this program's; its stdout is one JSON object with the counters of that process.
ExitCode warm_torch(Session& session, const WarmTorch& options);

}  // namespace kiln::cli
