// kiln run: compiles a graph, runs it on made-up inputs, and compares with the f64 reference when asked to.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "base/nearest.h"
#include "base/printable.h"
#include "cli/check_graph.h"
#include "cli/command.h"
#include "cli/graph_file.h"
#include "client/client.h"

namespace kiln::cli {
namespace {

struct RunOptions {
  std::string file;
  std::vector<std::string> inputs, symbols;
  uint32_t threads = 1, repeat = 1;
  uint64_t seed = 0;
  bool check = false;
};

/// --input name=how: by the input's name, or its number.
Expected<std::vector<std::string>> input_sources(const Graph& graph, const std::vector<std::string>& texts) {
  std::vector<std::string> names;
  for (const ValueId value : graph.inputs()) names.push_back(graph.value(value).name);
  std::vector<std::string> sources(names.size(), "random");
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) return invalid_argument("--input {} is not name=random|zeros|FILE", text);
    const std::string name = text.substr(0, equals);
    auto found = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    for (size_t i = 0; i < names.size() && found == names.size(); ++i) {
      if (std::to_string(i) == name) found = i;
    }
    if (found == names.size()) {
      const std::string_view nearest = nearest_name(name, names);
      return invalid_argument("the graph has no input {}{}", name,
                              nearest.empty() ? "" : fmt::format(", the nearest is {}", nearest));
    }
    sources[found] = text.substr(equals + 1);
  }
  return sources;
}

Expected<std::vector<Buffer>> make_inputs(const Graph& graph, const Program& program, const RunOptions& options) {
  KILN_ASSIGN_OR_RETURN(const auto sources, input_sources(graph, options.inputs));
  std::mt19937_64 random(options.seed);
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < sources.size(); ++i) {
    Buffer& buffer = buffers.emplace_back(program.inputs()[i]);
    if (sources[i] == "random") {
      fill_random(buffer, random);
    } else if (sources[i] != "zeros") {
      KILN_RETURN_IF_ERROR(fill_from_file(buffer, sources[i]).with_context(fmt::format("input {}", i)));
    }
  }
  return buffers;
}

struct Report {
  std::string how;
  double compile_ms = 0;
  std::vector<double> run_ms;
  std::vector<Comparison> comparisons;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

ExitCode print_report(const Session& session, const Graph& graph, const Program& program, const Json& stats,
                      const Report& report) {
  bool good = true;
  Json outputs = Json::array();
  Table table({"OUTPUT", "TYPE", "COMPARED", "MAX ERROR", "TOLERANCE", "RESULT"});
  for (size_t i = 0; i < program.outputs().size(); ++i) {
    const std::string type = graph.type(graph.outputs()[i]).to_string(graph.symbols());
    Json output{{"type", type}};
    if (!report.comparisons.empty()) {
      const Comparison& each = report.comparisons[i];
      good = good && each.good;
      output.update({{"compared", each.compared},
                     {"max_error", each.max_error},
                     {"tolerance", each.tolerance},
                     {"right", each.good}});
      table.add({std::to_string(i), type, std::to_string(each.compared), fmt::format("{:.2e}", each.max_error),
                 fmt::format("{:.0e}", each.tolerance), each.good ? "right" : "WRONG"});
    }
    outputs.push_back(std::move(output));
  }
  const double run_ms = median(report.run_ms);
  if (session.out().json) {
    session.out().print_json({{"found", report.how},
                              {"compilations", stats["compilations"]},
                              {"target", program.target()},
                              {"generation", program.generation()},
                              {"nodes", program.node_count()},
                              {"launches", program.launch_names()},
                              {"compile_ms", report.compile_ms},
                              {"run_ms", run_ms},
                              {"runs", report.run_ms.size()},
                              {"outputs", outputs}});
  } else {
    session.out().print_pairs({{"found", fmt::format("{}, {} compilations", report.how, stats["compilations"].dump())},
                               {"target", program.target()},
                               {"program", fmt::format("{} nodes in {} launches of {} kernels", program.node_count(),
                                                       program.launch_names().size(), program.kernel_count())},
                               {"compile", fmt::format("{:.2f} ms", report.compile_ms)},
                               {"run", fmt::format("{:.3f} ms, median of {}", run_ms, report.run_ms.size())}});
    if (session.out().verbosity > 0) {
      for (const std::string& name : program.launch_names()) session.out().line("  " + escaped(name));
    }
    if (!report.comparisons.empty()) session.out().print_table(table);
  }
  if (good) return ExitCode::ok;
  if (!session.out().json) {
    session.out().error({StatusCode::internal, "the result is not the reference's"},
                        "kiln verify looks for damage; a kernel that passed its verdict and is wrong here is a bug");
  }
  return ExitCode::failure;
}

ExitCode run(Session& session, const RunOptions& options) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  KILN_CLI_ASSIGN(session, const auto symbols, parse_symbols(options.symbols));
  KILN_CLI_ASSIGN(session, const Graph graph, read_bound_graph(options.file, symbols));
  KILN_CLI_ASSIGN(session, const auto client, Client::create(session.loaded()));

  Report report;
  auto start = Clock::now();
  KILN_CLI_ASSIGN(session, const Client::Compiled compiled, client->compile(graph, {.threads = options.threads}));
  report.compile_ms = Milliseconds(Clock::now() - start).count();
  report.how = compiled.how;
  const Program& program = *compiled.program;

  KILN_CLI_ASSIGN(session, std::vector<Buffer> inputs, make_inputs(graph, program, options));
  std::vector<Buffer> outputs;
  for (const TensorLayout& layout : program.outputs()) outputs.emplace_back(layout);
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (const Buffer& buffer : inputs) sources.push_back(buffer.data());
  for (Buffer& buffer : outputs) targets.push_back(buffer.data());
  for (uint32_t i = 0; i < options.repeat; ++i) {
    start = Clock::now();
    if (const Status status = program.run(sources, targets, options.threads); !status.ok()) return session.fail(status);
    report.run_ms.push_back(Milliseconds(Clock::now() - start).count());
  }

  if (options.check) {
    KILN_CLI_ASSIGN(session, report.comparisons, compare_outputs(graph, program, inputs, outputs, options.seed));
  }
  return print_report(session, graph, program, Json::parse(client->stats_json()), report);
}

}  // namespace

Action add_run(CommandLine& line) {
  auto options = std::make_shared<RunOptions>();
  line.option("FILE", options->file, "A graph, as text or in wire form", {.is_required = true});
  line.option("--input", options->inputs, "NAME=random, zeros or a file of raw elements; random if not given",
              {.name = "NAME=HOW"});
  line.option("--symbols", options->symbols, "Extents of symbolic dimensions", {.name = "s0=N,…"});
  line.option("--threads", options->threads, "Threads to run on", {.name = "N", .check = in_range(1, 1'024)});
  line.option("--repeat", options->repeat, "Runs to time", {.name = "N", .check = in_range(1, 1'000'000)});
  line.option("--seed", options->seed, "Of the random inputs", {.name = "N"});
  line.flag("--check", options->check, "Compare with the f64 reference");
  return [options](Session& session) { return run(session, *options); };
}

}  // namespace kiln::cli
