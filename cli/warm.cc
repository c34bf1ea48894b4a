// kiln warm: fills the cache, from graph files, by running a torch module once, or as a manifest of both says.

#include <fmt/format.h>

#include <chrono>

#include "backends/devices.h"
#include "cli/command.h"
#include "cli/graph_file.h"
#include "cli/manifest.h"
#include "cli/pack_create.h"
#include "cli/warm_torch.h"
#include "client/client.h"
#include "client/terminal/progress.h"
#include "client/terminal/text.h"

namespace kiln::cli {
namespace {

struct WarmOptions {
  std::vector<std::string> files, targets, symbols;
  bool tune = false;
  WarmTorch torch;
  PackCreation pack;  // without a file: none is made
};

/// Of one graph or model of a manifest.
struct Outcome {
  std::string name;  // the graph's file, the model's source
  Json facts = Json::object();
  Status status = {};
  bool is_whole = true;  // else something of it was left to torch
  std::string how = {};  // "mapped hit", "built", "tuned", "joined", "daemon hit"; "ran"
  uint64_t compilations = 0;
  double milliseconds = 0;
};

Status warm_graph(Client& client, const Manifest::GraphOfSize& row, const std::vector<std::string>& targets,
                  Progress& progress, Outcome& outcome) {
  KILN_ASSIGN_OR_RETURN(const Graph graph, read_graph(row.file));
  KILN_ASSIGN_OR_RETURN(const auto extents, symbol_values(graph, row.symbols));
  const Client::CompileOptions how_to{.symbol_values = extents,
                                      .priority = protocol::Priority::warming,
                                      .tune = row.tune,
                                      .progress = [&](const protocol::Progress& step) {
                                        progress.update(step.done, step.total,
                                                        step.item.empty() ? step.stage : step.item);
                                      }};
  if (targets.empty()) {
    const auto before = Json::parse(client.stats_json())["compilations"].get<uint64_t>();
    KILN_ASSIGN_OR_RETURN(const Client::Compiled compiled, client.compile(graph, how_to));
    outcome.how = compiled.how;
    outcome.compilations = Json::parse(client.stats_json())["compilations"].get<uint64_t>() - before;
  } else {
    KILN_ASSIGN_OR_RETURN(const protocol::Built built, client.build_for(graph, targets, how_to));
    outcome.how = built.joined ? "joined" : built.compilations != 0 ? "built" : "daemon hit";
    outcome.compilations = built.compilations;
  }
  return {};
}

Status warm_model(const Session& session, WarmTorch model, const std::vector<std::string>& targets, Outcome& outcome) {
  model.targets = targets;
  int exit_status = 0;
  KILN_ASSIGN_OR_RETURN(const Json stats,
                        run_module(session, model, configuration_variables(session.loaded()), &exit_status));
  const ExitCode code = exit_code_of_module(exit_status);
  outcome.how = "ran";
  outcome.is_whole = code == ExitCode::ok;
  outcome.compilations = stats.value("compilations", uint64_t{0});
  outcome.facts["stats"] = stats;
  if (code == ExitCode::ok || code == ExitCode::partial) return {};
  return error(StatusCode::unknown, "Python left with {}; its words are above", exit_status);
}

/// Fills what is left of the outcome. What fails is said at once and does not keep the others from being warmed.
template <typename Body>
bool attempt(const Session& session, Outcome& outcome, Body body) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const auto start = Clock::now();
  outcome.status = body();
  outcome.milliseconds = Milliseconds(Clock::now() - start).count();
  if (!outcome.status.ok()) session.out().warn(outcome.status, outcome.name);
  return outcome.status.code() != StatusCode::unavailable;  // there is no daemon to ask
}

std::vector<Outcome> warm_graphs(const Session& session, Client& client, const Manifest& work) {
  std::vector<Outcome> outcomes;
  Progress progress(session.out().quiet);
  for (const Manifest::GraphOfSize& row : work.graphs) {
    Outcome& outcome = outcomes.emplace_back(Outcome{.name = row.file});
    if (!row.symbols.empty()) outcome.facts["symbols"] = row.symbols;
    progress.begin(fmt::format("{} ({} of {})", row.file, outcomes.size(), work.graphs.size()));
    const bool goes_on = attempt(session, outcome, [&] {
      const Status status = warm_graph(client, row, work.targets, progress, outcome);
      progress.clear();
      return status;
    });
    if (!goes_on) break;
  }
  return outcomes;
}

std::vector<Outcome> warm_models(const Session& session, const Manifest& work) {
  std::vector<Outcome> outcomes;
  for (const WarmTorch& model : work.models) {
    Outcome& outcome = outcomes.emplace_back(Outcome{.name = model.source});
    outcome.facts = {{"mode", model.train ? "train" : "infer"}, {"shape", model.shape}};
    if (!attempt(session, outcome, [&] { return warm_model(session, model, work.targets, outcome); })) break;
  }
  return outcomes;
}

Json json_of(const Outcome& outcome, const char* name) {
  Json json{{name, outcome.name}, {"milliseconds", outcome.milliseconds}};
  json.update(outcome.facts);
  if (outcome.status.ok()) {
    json.update({{"result", outcome.how}, {"compilations", outcome.compilations}});
  } else {
    json["error"] = {{"code", to_string(outcome.status.code())}, {"message", outcome.status.message()}};
  }
  return json;
}

std::string result_of(const Outcome& outcome) {
  if (!outcome.status.ok()) return "failed";
  return outcome.is_whole ? outcome.how : outcome.how + ", in part";
}

struct Sums {
  size_t asked = 0, warmed = 0, in_part = 0;
  uint64_t compilations = 0;
};

void print(const Session& session, const std::vector<Outcome>& graphs, const std::vector<Outcome>& models,
           const Sums& sums) {
  Json lists{{"graphs", Json::array()}, {"models", Json::array()}};
  Table table({"GRAPH", "RESULT", "COMPILATIONS", "TIME"});
  for (const auto* outcomes : {&graphs, &models}) {
    for (const Outcome& each : *outcomes) {
      lists[outcomes == &graphs ? "graphs" : "models"].push_back(
          json_of(each, outcomes == &graphs ? "file" : "source"));
      table.add(
          {each.name, result_of(each), std::to_string(each.compilations), fmt::format("{:.1f} ms", each.milliseconds)});
    }
  }
  if (session.out().json) {
    lists.update({{"asked", sums.asked}, {"warmed", sums.warmed}, {"compilations", sums.compilations}});
    session.out().print_json(std::move(lists));
  } else {
    session.out().print_table(table);
    session.out().note(
        fmt::format("{} of {} graphs are in the cache, {} compilations", sums.warmed, sums.asked, sums.compilations));
  }
}

ExitCode warm_all(Session& session, const Manifest& work) {
  std::vector<Outcome> graphs;
  if (!work.graphs.empty()) {
    KILN_CLI_ASSIGN(session, const auto client, Client::create(session.loaded()));
    graphs = warm_graphs(session, *client, work);
  }
  std::vector<Outcome> models = warm_models(session, work);
  Sums sums{.asked = work.graphs.size() + work.models.size()};
  Status last;
  for (const auto* outcomes : {&graphs, &models}) {
    for (const Outcome& each : *outcomes) {
      sums.warmed += each.status.ok() && each.is_whole ? 1 : 0;
      sums.in_part += each.status.ok() && !each.is_whole ? 1 : 0;
      sums.compilations += each.compilations;
      if (!each.status.ok()) last = each.status;
    }
  }
  print(session, graphs, models, sums);
  if (sums.warmed == sums.asked) return ExitCode::ok;
  return sums.warmed + sums.in_part > 0 ? ExitCode::partial : exit_code_of(last);
}

Expected<Manifest> work_of(const WarmOptions& options) {
  Manifest work;
  KILN_ASSIGN_OR_RETURN(const auto symbols, parse_symbols(options.symbols));
  for (const std::string& file : options.files) {
    if (!is_manifest(file)) {
      work.graphs.push_back({file, symbols, false});
      continue;
    }
    KILN_ASSIGN_OR_RETURN(const Manifest read, read_manifest(file));
    work.targets.insert(work.targets.end(), read.targets.begin(), read.targets.end());
    work.graphs.insert(work.graphs.end(), read.graphs.begin(), read.graphs.end());
    work.models.insert(work.models.end(), read.models.begin(), read.models.end());
  }
  for (Manifest::GraphOfSize& graph : work.graphs) graph.tune |= options.tune;
  if (!options.targets.empty()) work.targets = options.targets;
  for (const std::string& target : work.targets) KILN_RETURN_IF_ERROR(find_target(target).status());
  return work;
}

ExitCode warm_torch_of(Session& session, const WarmOptions& options, const std::vector<std::string>& targets) {
  WarmTorch torch = options.torch;
  torch.targets = targets;
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

ExitCode warm(Session& session, const WarmOptions& options) {
  if (options.files.empty() == options.torch.source.empty()) {
    session.out().error(invalid_argument("either files or --torch module:function is needed"),
                        "kiln warm --help says what there is");
    return ExitCode::usage;
  }
  KILN_CLI_ASSIGN(session, const Manifest work, work_of(options));
  const ExitCode warmed =
      options.files.empty() ? warm_torch_of(session, options, work.targets) : warm_all(session, work);
  if (options.pack.file.empty() || (warmed != ExitCode::ok && warmed != ExitCode::partial)) return warmed;
  const ExitCode packed = pack(session, options.pack, work.targets);
  return packed == ExitCode::ok ? warmed : packed;
}

}  // namespace

Action add_warm(CommandLine& line) {
  auto options = std::make_shared<WarmOptions>();
  line.option("FILE", options->files, "Graphs, as text or in wire form; or manifests of graphs and models (*.yaml)");
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
