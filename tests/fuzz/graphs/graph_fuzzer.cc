// Makes random graphs, builds and runs each, and writes those that come out wrong as text. See tests/fuzz/README.md.

#include <fmt/chrono.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "frontend/reduce/reduce.h"
#include "frontend/text/text.h"
#include "tests/fuzz/graphs/compiled_graphs.h"
#include "tests/fuzz/graphs/graph_maker.h"

namespace kiln::fuzz {
namespace {

// Graphs that one process checks; then a fresh one goes on.
constexpr uint64_t k_graphs_a_process = 5'000;

struct Options {
  uint64_t seed = 0, count = UINT64_MAX, compiled_every = 0;
  double seconds = 0;
  std::string replay, reduce, out = ".", executor = KILN_EXECUTOR_PATH, record, label;
  bool tolerant = false;
};

/// Checks graphs as the options say.
class Checker {
 public:
  explicit Checker(const Options& options) : m_options(options) {}
  ~Checker() {
    m_compiled.reset();
    if (!m_directory.empty()) std::filesystem::remove_all(m_directory);
  }

  /// Graph `number` of a run; every so many are compiled, too.
  Outcome check(const Graph& graph, uint64_t number) {
    Outcome outcome = check_interpreted(graph);
    const bool compiles = m_options.compiled_every != 0 && number % m_options.compiled_every == 0;
    if (!outcome.status.ok() || !compiles) return outcome;
    Outcome compiled = check_compiled(graph);
    // A graph that the host has no kernel for, and that says of which op, goes on without that op.
    const bool is_refused = compiled.status.code() == StatusCode::unimplemented && !compiled.status.op().empty();
    m_compiled_count += is_refused ? 0 : 1;
    return is_refused ? outcome : compiled;
  }
  uint64_t compiled_count() const { return m_compiled_count; }

 private:
  Outcome check_compiled(const Graph& graph) {
    if (!m_compiled) {
      m_directory = (std::filesystem::temp_directory_path() / ("graph_fuzzer_" + std::to_string(getpid()))).string();
      auto compiled = CompiledGraphs::create(m_directory, m_options.executor);
      if (!compiled.ok()) return {compiled.status()};
      m_compiled = std::move(*compiled);
    }
    return m_compiled->check(graph);
  }

  const Options& m_options;
  std::string m_directory;
  std::unique_ptr<CompiledGraphs> m_compiled;
  uint64_t m_compiled_count = 0;
};

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

/// The exit status of a process that runs `body`; 128 and its signal when it dies.
template <typename Body>
int in_other_process(const Body& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int result = body();
    std::fflush(stdout);
    _exit(result);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// What the process that checks tells the one that waits, and what is left when it dies.
struct Progress {
  uint64_t next = 0;  // the number of the graph at work, or the first one not begun
  uint64_t compiled = 0, nodes = 0, compared = 0, determined = 0, failed = 0;
  double seconds = 0;
};

class Session {
 public:
  explicit Session(const Options& options)
      : m_options(options),
        m_progress(new(mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                       Progress) {}

  int run() {
    std::printf("seed %llu\n", static_cast<unsigned long long>(m_options.seed));
    while (!is_done()) {
      const int ended = in_other_process([&] {
        work();
        return 0;
      });
      if (ended < 128) continue;
      // The graph is made once more; that may be what died.
      const Status death = error(StatusCode::aborted, "died of signal {}", ended - 128);
      in_other_process([&] {
        const uint64_t seed = m_options.seed + m_progress->next;
        note(GraphMaker(seed).make(), {death}, seed);
        return 0;
      });
      ++m_progress->next;
    }
    return report();
  }

 private:
  double elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - m_start).count(); }
  bool is_done() const {
    return m_progress->next >= m_options.count || (m_options.seconds > 0 && elapsed() >= m_options.seconds);
  }

  void work() {
    Checker checker(m_options);
    for (uint64_t i = 0; i < k_graphs_a_process && !is_done(); ++i, ++m_progress->next) {
      const uint64_t seed = m_options.seed + m_progress->next;
      const Graph graph = GraphMaker(seed).make();
      const uint64_t compiled_before = checker.compiled_count();
      const Outcome outcome = checker.check(graph, m_progress->next);
      m_progress->compiled += checker.compiled_count() - compiled_before;
      note(graph, outcome, seed);
    }
  }

  void note(const Graph& graph, const Outcome& outcome, uint64_t seed) {
    m_progress->nodes += graph.nodes().size();
    m_progress->compared += outcome.compared;
    m_progress->determined += outcome.determined;
    if (outcome.status.ok()) return;
    ++m_progress->failed;
    const std::string path = m_options.out + "/graph_" + std::to_string(seed) + ".kiln";
    std::ofstream(path) << "# " << outcome.status.to_string() << "\n" << print_text(graph, {.result_types = true});
    std::printf("seed %llu: %s (%s)\n", static_cast<unsigned long long>(seed), outcome.status.to_string().c_str(),
                path.c_str());
    std::fflush(stdout);
  }

  int report() const {
    const Progress& p = *m_progress;
    const double share = static_cast<double>(p.determined) / static_cast<double>(p.compared + 1);
    fmt::print(
        "{} graphs in {:.1f} s ({:.1f} a second), {} compiled too, {} nodes; {} elements compared, {:.1f}% "
        "determined; {} failed\n",
        p.next, elapsed(), static_cast<double>(p.next) / elapsed(), p.compiled, p.nodes, p.compared, 100 * share,
        p.failed);
    if (!m_options.record.empty()) append_record(share);
    return p.failed == 0 || m_options.tolerant ? 0 : 1;
  }

  /// One line of JSON a run.
  void append_record(double share) const {
    const Progress& p = *m_progress;
    std::ofstream(m_options.record, std::ios::app) << fmt::format(
        R"({{"build": "{}", "machine": "{}", "date": "{:%Y-%m-%d}", "first_seed": {}, "graphs": {}, "compiled": {}, )"
        R"("nodes": {}, "elements": {}, "determined": {:.4f}, "seconds": {:.0f}, "failed": {}}})"
        "\n",
        m_options.label, processor_name(), fmt::gmtime(std::time(nullptr)), m_options.seed, p.next, p.compiled, p.nodes,
        p.compared, share, elapsed(), p.failed);
  }

  const Options& m_options;
  const std::chrono::steady_clock::time_point m_start = std::chrono::steady_clock::now();
  Progress* m_progress;  // shared with the process that checks
};

Expected<Graph> read_graph(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  auto graph = parse_text(text.str());
  if (!graph.ok()) std::printf("%s: %s\n", path.c_str(), graph.status().to_string().c_str());
  return graph;
}

int replay(const Options& options) {
  const auto graph = read_graph(options.replay);
  if (!graph.ok()) return 2;
  const Outcome outcome = Checker(options).check(*graph, 0);
  std::printf("%s: %s\n", options.replay.c_str(), outcome.status.to_string().c_str());
  return outcome.status.ok() ? 0 : 1;
}

int reduce_file(const Options& options) {
  const auto graph = read_graph(options.reduce);
  if (!graph.ok()) return 2;
  const auto becomes = [&](const Graph& g) {
    return in_other_process([&] { return static_cast<int>(Checker(options).check(g, 0).status.code()); });
  };
  const int wanted = becomes(*graph);
  const Graph smaller = reduce(*graph, [&](const Graph& g) { return becomes(g) == wanted; });
  std::printf("# %d, as %s\n%s", becomes(smaller), options.reduce.c_str(),
              print_text(smaller, {.result_types = true}).c_str());
  return 0;
}

}  // namespace
}  // namespace kiln::fuzz

int main(int argc, char** argv) {
  kiln::fuzz::Options options;
  CLI::App app("Makes random graphs and compares what they compute with the reference");
  app.add_option("--seed", options.seed, "Of the first graph; the next one has the next number. 0: a fresh one");
  app.add_option("--count", options.count, "How many graphs");
  app.add_option("--seconds", options.seconds, "Stops after that long");
  app.add_option("--compiled-every", options.compiled_every,
                 "Compiles, judges, publishes and maps one graph of so many, besides interpreting all; 0: none");
  app.add_option("--replay", options.replay, "Checks the graph in a file");
  app.add_option("--reduce", options.reduce, "Prints a smaller graph than that in a file, which fails in the same way");
  app.add_option("--out", options.out, "Where graphs that fail are written");
  app.add_option("--executor", options.executor, "kiln-executor");
  app.add_option("--record", options.record, "Appends a line of JSON to this file: what was run and how it went");
  app.add_option("--label", options.label, "What the record calls this build");
  app.add_flag("--tolerant", options.tolerant, "Reports what fails and succeeds");
  CLI11_PARSE(app, argc, argv);
  if (!options.replay.empty()) return kiln::fuzz::replay(options);
  if (!options.reduce.empty()) return kiln::fuzz::reduce_file(options);
  if (options.seed == 0) options.seed = std::random_device{}();
  return kiln::fuzz::Session(options).run();
}
