// Makes random graphs, builds and runs each, and writes those that come out wrong as text. See tests/fuzz/README.md.

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
  std::string replay, reduce, out = ".", executor = KILN_EXECUTOR_PATH;
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
    const Outcome outcome = check_interpreted(graph);
    const bool compiles = m_options.compiled_every != 0 && number % m_options.compiled_every == 0;
    if (!outcome.status.ok() || !compiles) return outcome;
    const Outcome compiled = check_compiled(graph);
    // A graph that the host has no kernel for, and that says of which op, goes on without that op.
    const bool is_refused = compiled.status.code() == StatusCode::unimplemented && !compiled.status.op().empty();
    return is_refused ? outcome : compiled;
  }

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
};

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
  uint64_t nodes = 0, compared = 0, determined = 0, failed = 0;
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
      note(graph, checker.check(graph, m_progress->next), seed);
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
    const auto graphs = static_cast<double>(m_progress->next);
    const auto share = static_cast<double>(m_progress->determined) / static_cast<double>(m_progress->compared + 1);
    std::printf(
        "%.0f graphs in %.1f s (%.1f a second), %llu nodes; %llu elements compared, %.1f%% determined; %llu failed\n",
        graphs, elapsed(), graphs / elapsed(), static_cast<unsigned long long>(m_progress->nodes),
        static_cast<unsigned long long>(m_progress->compared), 100 * share,
        static_cast<unsigned long long>(m_progress->failed));
    return m_progress->failed == 0 || m_options.tolerant ? 0 : 1;
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
  app.add_flag("--tolerant", options.tolerant, "Reports what fails and succeeds");
  CLI11_PARSE(app, argc, argv);
  if (!options.replay.empty()) return kiln::fuzz::replay(options);
  if (!options.reduce.empty()) return kiln::fuzz::reduce_file(options);
  if (options.seed == 0) options.seed = std::random_device{}();
  return kiln::fuzz::Session(options).run();
}
