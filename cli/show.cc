#include <fmt/format.h>

#include "cli/command.h"
#include "cli/entries.h"
#include "cli/text.h"

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

}  // namespace

Action add_show(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  app.add_option("KEY", *name, "First digits of a key or digest")->required()->check(entry_name());
  return [name](Session& session) {
    KILN_CLI_ASSIGN(session, const Json entry, session.find_entry(*name));
    if (session.out().json) {
      session.out().print_json({{"entry", entry}});
    } else {
      print_entry(session.out(), entry);
    }
    return ExitCode::ok;
  };
}

}  // namespace kiln::cli
