// kiln pin and kiln unpin.

#include <fmt/format.h>

#include "cli/command.h"

namespace kiln::cli {
namespace {

ExitCode set_pin(Session& session, const std::string& name, bool on) {
  KILN_CLI_ASSIGN(session, const Json entry, session.find_entry(name));
  const auto digest = Digest::from_hex(entry.value("digest", ""));
  if (!digest) return session.fail(error(StatusCode::internal, "the daemon named an entry without a digest"));
  KILN_CLI_ASSIGN(session, Json answer,
                  session.ask({.verb = protocol::Verb::pin, .key = *digest, .text = on ? "on" : "off"}));
  if (session.out().json) {
    session.out().print_json(std::move(answer));
  } else if (!session.out().quiet) {
    session.out().line(fmt::format("{} {}", digest->to_hex(), on ? "pinned" : "not pinned"));
  }
  return ExitCode::ok;
}

Action add(CommandLine& line, bool on) {
  auto name = std::make_shared<std::string>();
  line.option("KEY", *name, "First digits of a key or digest", {.check = entry_name(), .is_required = true});
  return [name, on](Session& session) { return set_pin(session, *name, on); };
}

}  // namespace

Action add_pin(CommandLine& line) { return add(line, true); }
Action add_unpin(CommandLine& line) { return add(line, false); }

}  // namespace kiln::cli
