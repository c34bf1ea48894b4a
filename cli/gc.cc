// kiln gc and kiln clear: both drop entries, and say how many.

#include <fmt/format.h>

#include "cli/command.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

ExitCode drop(Session& session, protocol::Command command) {
  KILN_CLI_ASSIGN(session, Json answer, session.ask(std::move(command)));
  const Json before = answer["before"], after = answer["after"];
  if (session.out().json) {
    session.out().print_json(std::move(answer));
    return ExitCode::ok;
  }
  Table table({"", "BEFORE", "AFTER"});
  const auto count = [](const Json& sizes, const char* name) { return sizes.value(name, uint64_t{0}); };
  for (const char* name : {"artifacts", "heads", "files"}) {
    table.add({name, std::to_string(count(before, name)), std::to_string(count(after, name))});
  }
  table.add({"on disk", human_bytes(count(before, "file_bytes")), human_bytes(count(after, "file_bytes"))});
  session.out().print_table(table);
  return ExitCode::ok;
}

std::string check_size(const std::string& text) {
  return parse_bytes(text) ? "" : fmt::format("'{}' is no size: expected a number with B, K, M, G or T", text);
}

}  // namespace

Action add_gc(CommandLine& line) {
  auto size = std::make_shared<std::string>();
  line.option("--size", *size, "Bytes to keep; cache.size_max_bytes if not given",
              {.name = "N[K|M|G|T]", .check = {check_size, ""}});
  return [size](Session& session) {
    const std::string bytes = size->empty() ? "" : std::to_string(*parse_bytes(*size));
    return drop(session, {.verb = protocol::Verb::gc, .text = bytes});
  };
}

Action add_clear(CommandLine&) {
  return [](Session& session) { return drop(session, {.verb = protocol::Verb::clear}); };
}

}  // namespace kiln::cli
