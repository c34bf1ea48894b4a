#include <fmt/format.h>

#include "cli/command.h"

namespace kiln::cli {

Action add_verify(CommandLine&) {
  return [](Session& session) {
    session.out().note("reading every entry back");
    KILN_CLI_ASSIGN(session, Json answer, session.ask({.verb = protocol::Verb::verify}));
    const Json damaged = answer["damaged"];
    if (session.out().json) {
      session.out().print_json(std::move(answer));
    } else {
      Table table({"DAMAGED", "WHY"});
      for (const Json& each : damaged) table.add({each.value("digest", ""), each.value("reason", "")});
      if (!damaged.empty()) session.out().print_table(table);
      session.out().line(fmt::format("{} entries checked, {} damaged", answer.value("checked", 0), damaged.size()));
      if (!damaged.empty())
        session.out().note("the damaged ones are dropped: they are built again when next asked for");
    }
    return damaged.empty() ? ExitCode::ok : ExitCode::corrupt_found;
  };
}

}  // namespace kiln::cli
