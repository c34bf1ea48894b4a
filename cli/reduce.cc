// kiln reduce: a smaller graph that comes out wrong as the one in a file does, or that cannot be had for the same reason.

#include "frontend/reduce/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "cli/check_graph.h"
#include "cli/command.h"
#include "cli/graph_file.h"
#include "frontend/text/text.h"

namespace kiln::cli {
namespace {

struct ReduceOptions {
  std::string file, out;
  std::vector<std::string> symbols;
  uint32_t seconds = 240;
  uint64_t seed = 0;
};

/// What becomes of a graph: right, wrong, or an error.
struct Fate {
  StatusCode code = StatusCode::ok;
  bool is_wrong = false;
  std::string what = "right";
  bool operator==(const Fate& other) const { return code == other.code && is_wrong == other.is_wrong; }
};

Expected<Fate> run_and_compare(const Graph& graph, const Program& program, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Buffer> inputs, outputs;
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (const TensorLayout& layout : program.inputs()) fill_random(inputs.emplace_back(layout), random);
  for (const TensorLayout& layout : program.outputs()) outputs.emplace_back(layout);
  for (const Buffer& buffer : inputs) sources.push_back(buffer.data());
  for (Buffer& buffer : outputs) targets.push_back(buffer.data());
  KILN_RETURN_IF_ERROR(program.run(sources, targets, 1));
  KILN_ASSIGN_OR_RETURN(const auto comparisons, compare_outputs(graph, program, inputs, outputs, seed));
  Fate fate;
  for (size_t i = 0; i < comparisons.size(); ++i) {
    if (comparisons[i].good) continue;
    fate.is_wrong = true;
    fate.what = fmt::format("output {} is wrong: an error of {:.2e}, {:.0e} is allowed", i, comparisons[i].max_error,
                            comparisons[i].tolerance);
  }
  return fate;
}

Fate look_at(Client& client, const Graph& graph, uint64_t seed) {
  const auto compiled = client.compile(graph, {});
  if (!compiled.ok()) return {compiled.status().code(), false, compiled.status().to_string()};
  const auto fate = run_and_compare(graph, *compiled->program, seed);
  return fate.ok() ? *fate : Fate{fate.status().code(), false, fate.status().to_string()};
}

ExitCode run_reduce(Session& session, const ReduceOptions& options) {
  using Clock = std::chrono::steady_clock;
  KILN_CLI_ASSIGN(session, const auto symbols, parse_symbols(options.symbols));
  KILN_CLI_ASSIGN(session, const Graph graph, read_bound_graph(options.file, symbols));
  KILN_CLI_ASSIGN(session, const auto client, Client::create(session.loaded()));

  const Fate wanted = look_at(*client, graph, options.seed);
  if (wanted == Fate{}) {
    return session.fail(
        error(StatusCode::failed_precondition, "{} comes out right: there is nothing to reduce", options.file));
  }
  const auto end = Clock::now() + std::chrono::seconds(options.seconds);
  const Graph smaller = reduce(graph, [&](const Graph& candidate) {
    return Clock::now() < end && look_at(*client, candidate, options.seed) == wanted;
  });
  const std::string text = fmt::format("# {}\n{}", look_at(*client, smaller, options.seed).what,
                                       print_text(smaller, {.result_types = true}));
  if (options.out.empty()) {
    session.out().line(text);
    return ExitCode::ok;
  }
  std::ofstream file(options.out);
  file << text;
  if (!file.flush()) return session.fail(error(StatusCode::unknown, "{} cannot be written", options.out));
  session.out().line(fmt::format("{} of {} nodes: {}", smaller.nodes().size(), graph.nodes().size(), options.out));
  return ExitCode::ok;
}

}  // namespace

Action add_reduce(CommandLine& line) {
  auto options = std::make_shared<ReduceOptions>();
  line.option("FILE", options->file, "A graph that comes out wrong, as text or in wire form", {.is_required = true});
  line.option("--out", options->out, "Where the smaller graph is written; printed if not given", {.name = "FILE"});
  line.option("--symbols", options->symbols, "Extents of symbolic dimensions", {.name = "s0=N,…"});
  line.option("--seconds", options->seconds, "Tries for that long at most",
              {.name = "N", .check = in_range(1, 86'400)});
  line.option("--seed", options->seed, "Of the random inputs", {.name = "N"});
  return [options](Session& session) { return run_reduce(session, *options); };
}

}  // namespace kiln::cli
