// Makes random graphs, builds and runs each, and writes those that come out wrong as text. See tests/fuzz/README.md.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "frontend/reduce/reduce.h"
#include "frontend/text/text.h"
#include "tests/fuzz/graphs/graph_maker.h"
#include "tests/fuzz/graphs/graph_runner.h"

namespace kiln::fuzz {
namespace {

struct Options {
  uint64_t seed = 1, count = 1000;
  double seconds = 0;
  std::string replay, reduce, out = ".";
  bool tolerant = false;
};

class Session {
 public:
  explicit Session(const Options& options) : m_options(options) {}

  void run() {
    for (uint64_t i = 0; i < m_options.count && (m_options.seconds <= 0 || elapsed() < m_options.seconds); ++i) {
      const uint64_t seed = m_options.seed + i;
      const Graph graph = GraphMaker(seed).make();
      note(graph, check_interpreted(graph), seed);
    }
  }

  int report() const {
    std::printf(
        "%llu graphs in %.1f s (%.1f a second), %llu nodes; %llu elements compared, %.1f%% determined; %zu failed\n",
        static_cast<unsigned long long>(m_graphs), elapsed(), static_cast<double>(m_graphs) / elapsed(),
        static_cast<unsigned long long>(m_nodes), static_cast<unsigned long long>(m_compared),
        100.0 * static_cast<double>(m_determined) / static_cast<double>(std::max<uint64_t>(m_compared, 1)), m_failed);
    return m_failed == 0 || m_options.tolerant ? 0 : 1;
  }

  void note(const Graph& graph, const Outcome& outcome, uint64_t seed) {
    ++m_graphs;
    m_nodes += graph.nodes().size();
    m_compared += outcome.compared;
    m_determined += outcome.determined;
    if (outcome.status.ok()) return;
    ++m_failed;
    const std::string path = m_options.out + "/graph_" + std::to_string(seed) + ".kiln";
    std::ofstream(path) << "# " << outcome.status.to_string() << "\n" << print_text(graph, {.result_types = true});
    std::printf("seed %llu: %s (%s)\n", static_cast<unsigned long long>(seed), outcome.status.to_string().c_str(),
                path.c_str());
    std::fflush(stdout);
  }

 private:
  double elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - m_start).count(); }

  const Options& m_options;
  const std::chrono::steady_clock::time_point m_start = std::chrono::steady_clock::now();
  uint64_t m_graphs = 0, m_nodes = 0, m_compared = 0, m_determined = 0;
  size_t m_failed = 0;
};

Expected<Graph> read_graph(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return parse_text(text.str());
}

int reduce_file(const std::string& path) {
  const auto graph = read_graph(path);
  if (!graph.ok()) return std::printf("%s: %s\n", path.c_str(), graph.status().to_string().c_str()), 2;
  const StatusCode wanted = check_interpreted(*graph).status.code();
  const Graph smaller = reduce(*graph, [&](const Graph& g) { return check_interpreted(g).status.code() == wanted; });
  std::printf("# %s\n%s", check_interpreted(smaller).status.to_string().c_str(),
              print_text(smaller, {.result_types = true}).c_str());
  return 0;
}

int replay(const std::string& path) {
  const auto graph = read_graph(path);
  if (!graph.ok()) return std::printf("%s: %s\n", path.c_str(), graph.status().to_string().c_str()), 2;
  const Outcome outcome = check_interpreted(*graph);
  std::printf("%s: %s\n", path.c_str(), outcome.status.to_string().c_str());
  return outcome.status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kiln::fuzz

int main(int argc, char** argv) {
  kiln::fuzz::Options options;
  CLI::App app("Makes random graphs and compares what they compute with the reference");
  app.add_option("--seed", options.seed, "Of the first graph; the next one has the next number");
  app.add_option("--count", options.count, "How many graphs");
  app.add_option("--seconds", options.seconds, "Stops after that long; 0: after --count");
  app.add_option("--replay", options.replay, "Checks the graph in a file");
  app.add_option("--reduce", options.reduce,
                 "Prints a smaller graph than the one in a file, which fails in the same way");
  app.add_option("--out", options.out, "Where graphs that fail are written");
  app.add_flag("--tolerant", options.tolerant, "Reports what fails and succeeds");
  CLI11_PARSE(app, argc, argv);
  if (!options.replay.empty()) return kiln::fuzz::replay(options.replay);
  if (!options.reduce.empty()) return kiln::fuzz::reduce_file(options.reduce);
  kiln::fuzz::Session session(options);
  session.run();
  return session.report();
}
