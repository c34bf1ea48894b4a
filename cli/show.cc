#include <fmt/format.h>

#include "cli/command.h"
#include "cli/entries.h"
#include "client/nearest/nearest.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

void print_entry(const Output& out, const Json& entry) {
  const auto yes_no = [&](const char* field) { return entry.value(field, false) ? "yes" : "no"; };
  out.print_pairs({{"digest", entry.value("digest", "")},
                   {"kind", entry.value("kind", "")},
                   {"size", human_bytes(entry.value("payload_bytes", uint64_t{0}))},
                   {"created", human_age(entry.value("created_ms", uint64_t{0}))},
                   {"pinned", yes_no("pinned")},
                   {"mapped", yes_no("mapped")},
                   {"page aligned", yes_no("aligned")}});
  for (const Json& head : entry.value("heads", Json::array())) {
    out.line("");
    std::vector<std::pair<std::string, std::string>> pairs = {
        {"key", head.value("key", "")}, {"generation", std::to_string(head.value("generation", 0))}};
    for (auto& [name, value] : parts_of(head)) pairs.emplace_back("  " + name, value);
    out.print_pairs(pairs);
  }
}

/// What was measured of a kernel's candidates, as they raced.
void print_record(const Output& out, const Json& record) {
  out.line("");
  out.print_pairs({{"kernel", record.value("kernel", "")}, {"machine", record.value("machine", "")}});
  const auto winner = record.value("winner", size_t{0});
  Table table({"", "MEDIAN", "SPREAD", "SAMPLES", "CANDIDATE"});
  const Json candidates = record.value("candidates", Json::array());
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Json& candidate = candidates[i];
    const auto seconds = candidate.value("seconds", std::vector<double>{});
    const std::string dropped = candidate.value("dropped", "");
    const std::string state = i == winner ? "winner" : candidate.value("is_finalist", false) ? "final" : "";
    table.add({state, seconds.empty() ? "-" : fmt::format("{:.1f} us", candidate.value("median", 0.0) * 1e6),
               seconds.empty() ? "-" : fmt::format("{:.1f} %", candidate.value("spread", 0.0) * 100),
               std::to_string(seconds.size()),
               candidate.value("description", "") + (dropped.empty() ? "" : ": " + dropped)});
  }
  out.line("");
  out.print_table(table);
}

}  // namespace

Action add_show(CommandLine& line) {
  auto name = std::make_shared<std::string>();
  line.option("KEY", *name, "First digits of a key or digest", {.check = entry_name(), .is_required = true});
  return [name](Session& session) {
    KILN_CLI_ASSIGN(session, const Json entry, session.find_entry(*name));
    if (session.out().json) {
      session.out().print_json({{"entry", entry}});
    } else {
      print_entry(session.out(), entry);
      if (entry.contains("record")) print_record(session.out(), entry["record"]);
    }
    return ExitCode::ok;
  };
}

}  // namespace kiln::cli
