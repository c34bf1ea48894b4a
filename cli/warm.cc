// kiln warm: fills the cache, from graph files or by running a torch module once.

#include <fmt/format.h>

#include <chrono>

#include "backends/devices.h"
#include "cli/command.h"
#include "cli/graph_file.h"
#include "cli/pack_create.h"
#include "cli/warm_torch.h"
#include "client/client.h"
#include "client/terminal/progress.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

struct Options {
  std::vector<std::string> files, targets, symbols;
  bool tune = false;
  WarmTorch torch;
  PackCreation pack;  // without a file: none is made
};

struct Outcome {
  std::string file;
  Status status;
  std::string how;  // "mapped hit", "built", "tuned", "joined", "daemon hit"
  uint64_t compilations = 0;
  double milliseconds = 0;
};

Expected<Outcome> warm_one(Client& client, const std::string& file, const Options& options,
                           const std::map<std::string, int64_t>& symbols, Progress& progress) {
  KILN_ASSIGN_OR_RETURN(const Graph graph, read_graph(file));
  KILN_ASSIGN_OR_RETURN(const auto extents, symbol_values(graph, symbols));
  const Client::CompileOptions how_to{.symbol_values = extents,
                                      .priority = protocol::Priority::warming,
                                      .tune = options.tune,
                                      .progress = [&](const protocol::Progress& step) {
                                        progress.update(step.done, step.total,
                                                        step.item.empty() ? step.stage : step.item);
                                      }};
  Outcome outcome{.file = file};
  if (options.targets.empty()) {
    const auto before = Json::parse(client.stats_json())["compilations"].get<uint64_t>();
    KILN_ASSIGN_OR_RETURN(const Client::Compiled compiled, client.compile(graph, how_to));
    outcome.how = compiled.how;
    outcome.compilations = Json::parse(client.stats_json())["compilations"].get<uint64_t>() - before;
  } else {
    KILN_ASSIGN_OR_RETURN(const protocol::Built built, client.build_for(graph, options.targets, how_to));
    outcome.how = built.joined ? "joined" : built.compilations != 0 ? "built" : "daemon hit";
    outcome.compilations = built.compilations;
  }
  return outcome;
}

/// In the order given. What fails is said at once and does not keep the others from being warmed, unless there is no
/// daemon to ask.
std::vector<Outcome> warm_all(const Session& session, Client& client, const Options& options,
                              const std::map<std::string, int64_t>& symbols) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  std::vector<Outcome> outcomes;
  Progress progress(session.out().quiet);
  for (size_t i = 0; i < options.files.size(); ++i) {
    const std::string& file = options.files[i];
    progress.begin(fmt::format("{} ({} of {})", file, i + 1, options.files.size()));
    const auto start = Clock::now();
    auto outcome = warm_one(client, file, options, symbols, progress);
    progress.clear();
    outcomes.push_back(outcome.ok() ? std::move(*outcome) : Outcome{.file = file, .status = outcome.status()});
    outcomes.back().milliseconds = Milliseconds(Clock::now() - start).count();
    if (outcome.ok()) continue;
    session.out().warn(outcome.status(), file);
    if (outcome.status().code() == StatusCode::unavailable) break;
  }
  return outcomes;
}

void print_outcomes(const Session& session, const std::vector<Outcome>& outcomes, size_t asked, size_t warmed) {
  Json graphs = Json::array();
  Table table({"GRAPH", "RESULT", "COMPILATIONS", "TIME"});
  uint64_t compilations = 0;
  for (const Outcome& each : outcomes) {
    Json graph{{"file", each.file}, {"milliseconds", each.milliseconds}};
    if (each.status.ok()) {
      graph.update({{"result", each.how}, {"compilations", each.compilations}});
    } else {
      graph["error"] = {{"code", to_string(each.status.code())}, {"message", each.status.message()}};
    }
    graphs.push_back(std::move(graph));
    compilations += each.compilations;
    table.add({each.file, each.status.ok() ? each.how : "failed", std::to_string(each.compilations),
               fmt::format("{:.1f} ms", each.milliseconds)});
  }
  if (session.out().json) {
    session.out().print_json(
        {{"asked", asked}, {"warmed", warmed}, {"compilations", compilations}, {"graphs", graphs}});
  } else {
    session.out().print_table(table);
    session.out().note(fmt::format("{} of {} graphs are in the cache, {} compilations", warmed, asked, compilations));
  }
}

ExitCode warm_files(Session& session, const Options& options) {
  KILN_CLI_ASSIGN(session, const auto symbols, parse_symbols(options.symbols));
  KILN_CLI_ASSIGN(session, const auto client, Client::create(session.loaded()));
  const std::vector<Outcome> outcomes = warm_all(session, *client, options, symbols);
  size_t warmed = 0;
  for (const Outcome& each : outcomes) warmed += each.status.ok() ? 1 : 0;
  print_outcomes(session, outcomes, options.files.size(), warmed);
  if (warmed == options.files.size()) return ExitCode::ok;
  return warmed > 0 ? ExitCode::partial : exit_code_of(outcomes.back().status);
}

ExitCode warm_either(Session& session, const Options& options) {
  if (options.torch.source.empty()) return warm_files(session, options);
  WarmTorch torch = options.torch;
  torch.targets = options.targets;
  return warm_torch(session, torch);
}

/// What was warmed, and what the cache has besides of these targets.
ExitCode pack(Session& session, PackCreation creation, const std::vector<std::string>& targets) {
  creation.targets = targets;
  KILN_CLI_ASSIGN(session, const PackContents written, create_pack(session, creation));
  session.out().note(fmt::format("{}: {} artifacts, {} keys, {}, signed by {}", creation.file, written.artifacts,
                                 written.keys, human_bytes(written.bytes),
                                 written.signer.empty() ? "nobody" : written.signer));
  return ExitCode::ok;
}

ExitCode warm(Session& session, const Options& options) {
  for (const std::string& target : options.targets) {
    if (const auto known = find_target(target); !known.ok()) return session.fail(known.status());
  }
  if (options.files.empty() == options.torch.source.empty()) {
    session.out().error(invalid_argument("either graph files or --torch module:function is needed"),
                        "kiln warm --help says what there is");
    return ExitCode::usage;
  }
  const ExitCode warmed = warm_either(session, options);
  if (options.pack.file.empty() || (warmed != ExitCode::ok && warmed != ExitCode::partial)) return warmed;
  const ExitCode packed = pack(session, options.pack, options.targets);
  return packed == ExitCode::ok ? warmed : packed;
}

}  // namespace

Action add_warm(CommandLine& line) {
  auto options = std::make_shared<Options>();
  line.option("FILE", options->files, "Graphs, as text or in wire form");
  line.option("--target", options->targets,
              "Targets to build for, of this host or not; the best of this host if not given",
              {.name = "NAME,…", .delimiter = ','});
  line.option("--symbols", options->symbols, "Extents of symbolic dimensions", {.name = "s0=N,…"});
  line.flag("--tune", options->tune, "Race candidates for matrix products and attention on this machine");
  line.option("--pack", options->pack.file, "Then write what the cache has into this pack; of --target's targets alone",
              {.name = "FILE"});
  line.option("--sign", options->pack.sign, "With --pack: the key that signs it", {.name = "FILE"});
  line.option("--torch", options->torch.source, "A function that gives a torch module and example inputs",
              {.name = "MODULE:FUNCTION"});
  line.flag("--train", options->torch.train, "With --torch: the backward too");
  line.flag("--whole", options->torch.whole, "With --torch: torch.compile(backend=\"kiln\") instead of kiln.compile");
  return [options](Session& session) { return warm(session, *options); };
}

}  // namespace kiln::cli
