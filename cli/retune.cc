// kiln retune: candidates race again, also those of kernels that have raced, and the winners are published.

#include <fmt/format.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/entries.h"
#include "client/client.h"
#include "client/nearest/nearest.h"
#include "client/terminal/progress.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

/// The programs that race: those named, or all.
Expected<std::vector<KnownKey>> subjects(Session& session, const std::vector<std::string>& names,
                                         const KnownKeys& known) {
  std::vector<KnownKey> programs;
  for (const KnownKey& each : known.all()) {
    if (each.part("level") != "program" || !each.part("proof").empty()) continue;
    if (each.part("deterministic").empty()) programs.push_back(each);
  }
  if (names.empty()) return programs;
  std::vector<KnownKey> named;
  for (const std::string& name : names) {
    KILN_ASSIGN_OR_RETURN(const Json entry, session.find_entry(name));
    const auto found = std::ranges::find(programs, name_of(entry), &KnownKey::key);
    if (found == programs.end()) {
      return invalid_argument(
          "{} is a {}; what races is a program that was checked here, unless it is deterministic: kiln ls "
          "--kind program",
          name, entry.value("kind", ""));
    }
    named.push_back(*found);
  }
  return named;
}

/// Gives what the races of one program found: a row of the report for each kernel.
Expected<Json> retune(Client& client, const KnownKey& program, KnownKeys& known, Progress& progress) {
  const Graph* graph = known.graph_of(program);
  if (graph == nullptr) return error(StatusCode::not_found, "the graph is not kept: it is too large");
  KILN_ASSIGN_OR_RETURN(const protocol::Built built,
                        client.build_for(*graph, {program.part("target")},
                                         {.priority = protocol::Priority::warming,
                                          .tune = true,
                                          .again = true,
                                          .threads = program.threads(),
                                          .progress = [&](const protocol::Progress& step) {
                                            progress.update(step.done, step.total,
                                                            step.item.empty() ? step.stage : step.item);
                                          }}));
  Json kernels = Json::array();
  const Json report = Json::parse(built.report, nullptr, false);
  if (!report.is_object()) return kernels;
  for (const Json& each : report.value("programs", Json::array())) {
    for (const Json& kernel : each.value("kernels", Json::array())) {
      if (kernel.contains("tuned")) kernels.push_back(kernel);
    }
  }
  return kernels;
}

void add_rows(Table& table, const KnownKey& program, const Json& kernels) {
  for (const Json& kernel : kernels) {
    const bool is_tuned = kernel.value("tuned", false);
    table.add({program.key.substr(0, 12), kernel.value("name", ""),
               is_tuned ? fmt::format("{:.2f}x", kernel.value("gain", 1.0)) : "-",
               is_tuned ? kernel.value("schedule", "") : kernel.value("why", "")});
  }
}

ExitCode run_retune(Session& session, const std::vector<std::string>& names) {
  KILN_CLI_ASSIGN(session, KnownKeys known,
                  KnownKeys::list([&](protocol::Command command) { return session.ask(std::move(command)); }));
  KILN_CLI_ASSIGN(session, const auto programs, subjects(session, names, known));
  LoadedConfig config = session.loaded();
  config.values.deterministic = false;
  KILN_CLI_ASSIGN(session, const auto client, Client::create(config));
  Table table({"PROGRAM", "KERNEL", "GAIN", "WINNER"});
  Json answers = Json::array();
  size_t done = 0;
  Progress progress(session.out().quiet);
  for (size_t i = 0; i < programs.size(); ++i) {
    progress.begin(fmt::format("{} ({} of {})", programs[i].key.substr(0, 12), i + 1, programs.size()));
    const auto kernels = retune(*client, programs[i], known, progress);
    progress.clear();
    if (!kernels.ok()) {
      session.out().warn(kernels.status(), programs[i].key);
      continue;
    }
    ++done;
    add_rows(table, programs[i], *kernels);
    answers.push_back({{"key", programs[i].key}, {"kernels", *kernels}});
  }
  if (session.out().json) {
    session.out().print_json({{"asked", programs.size()}, {"retuned", done}, {"programs", answers}});
  } else {
    session.out().print_table(table);
    session.out().note(
        fmt::format("{} of {} programs raced again; processes that start now map the winners", done, programs.size()));
  }
  return done == programs.size() ? ExitCode::ok : done > 0 ? ExitCode::partial : ExitCode::failure;
}

}  // namespace

Action add_retune(CommandLine& line) {
  auto names = std::make_shared<std::vector<std::string>>();
  line.option("KEY", *names, "First digits of programs' keys; all programs if none is given", {.check = entry_name()});
  return [names](Session& session) { return run_retune(session, *names); };
}

}  // namespace kiln::cli
