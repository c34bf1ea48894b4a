#include <fmt/format.h>

#include "cli/command.h"
#include "cli/entries.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

struct ListOptions {
  std::string kind, target;
  size_t limit = 0;
};

/// The entries that pass, newest first; `matched` is how many would without the limit.
std::vector<Json> select(Json entries, const ListOptions& options, size_t& matched) {
  std::vector<Json> kept;
  for (Json& entry : entries) {
    if (!options.kind.empty() && entry.value("kind", "") != options.kind) continue;
    if (!options.target.empty() && part_of(entry, "target") != options.target) continue;
    kept.push_back(std::move(entry));
  }
  std::stable_sort(kept.begin(), kept.end(), [](const Json& a, const Json& b) {
    return a.value("created_ms", uint64_t{0}) > b.value("created_ms", uint64_t{0});
  });
  matched = kept.size();
  if (options.limit != 0 && kept.size() > options.limit) kept.resize(options.limit);
  return kept;
}

std::string flags_of(const Json& entry) {
  std::string flags;
  if (entry.value("pinned", false)) flags += "pinned ";
  if (!entry.value("mapped", true)) flags += "unmapped ";
  if (part_of(entry, "proof") == "deferred") flags += "unchecked ";
  if (flags.empty()) return "-";
  flags.pop_back();
  return flags;
}

ExitCode list(Session& session, const ListOptions& options) {
  KILN_CLI_ASSIGN(session, Json answer, session.ask({.verb = protocol::Verb::list}));
  size_t matched = 0;
  const std::vector<Json> entries = select(std::move(answer["entries"]), options, matched);
  const Json store = answer.value("store", Json::object());
  if (session.out().json) {
    session.out().print_json({{"entries", entries}, {"matched", matched}, {"store", store}});
    return ExitCode::ok;
  }
  Table table({"KEY", "KIND", "TARGET", "SIZE", "CREATED", "FLAGS", "NAME"});
  for (const Json& entry : entries) {
    const std::string target = part_of(entry, "target");
    table.add({name_of(entry).substr(0, 16), entry.value("kind", "?"), target.empty() ? "-" : target,
               human_bytes(entry.value("payload_bytes", uint64_t{0})),
               human_age(entry.value("created_ms", uint64_t{0})), flags_of(entry), title_of(entry)});
  }
  session.out().print_table(table);
  session.out().note(fmt::format("{} of {} entries, {} on disk", entries.size(), store.value("artifacts", 0),
                                 human_bytes(store.value("file_bytes", uint64_t{0}))));
  return ExitCode::ok;
}

}  // namespace

Action add_ls(CommandLine& line) {
  auto options = std::make_shared<ListOptions>();
  line.option(
      "--kind", options->kind, "Only this kind",
      {.name = "code|plan|program|capture|record", .check = one_of({"code", "plan", "program", "capture", "record"})});
  line.option("--target", options->target, "Only what was made for this target", {.name = "NAME"});
  line.option("--limit", options->limit, "At most so many; 0 is all", {.name = "N"});
  return [options](Session& session) { return list(session, *options); };
}

}  // namespace kiln::cli
