#include "cli/command.h"

namespace kiln::cli {

Action add_stats(CommandLine&) {
  return [](Session& session) {
    KILN_CLI_ASSIGN(session, Json stats, session.ask({.verb = protocol::Verb::stats}, Session::Start::never));
    if (session.out().json) {
      session.out().print_json(std::move(stats));
      return ExitCode::ok;
    }
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const auto& [name, value] : stats["counters"].items()) {
      std::string words = name;
      std::replace(words.begin(), words.end(), '_', ' ');
      pairs.emplace_back(words, value.dump());
    }
    session.out().print_pairs(pairs);
    return ExitCode::ok;
  };
}

}  // namespace kiln::cli
