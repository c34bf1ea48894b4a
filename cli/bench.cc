// kiln bench: what this machine can do at best, and how close tuned kernels come to it.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "backends/devices.h"
#include "backends/host_loops.h"
#include "backends/host_rate.h"
#include "base/printable.h"
#include "cli/check_graph.h"
#include "cli/command.h"
#include "client/client.h"
#include "client/terminal/progress.h"
#include "frontend/text/text.h"

namespace kiln::cli {
namespace {

constexpr uint64_t k_team_calls = 1'000;
constexpr uint64_t k_least_read_bytes = uint64_t{64} << 20, k_most_read_bytes = uint64_t{1} << 30;
constexpr int k_repeats = 25;             // of the calls of a team
constexpr double k_sample_seconds = 0.3;  // of a kernel
constexpr size_t k_most_runs = 1'000;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// What so many threads can do at best.
struct Roof {
  uint32_t threads = 1;
  std::vector<std::pair<std::string, double>> operations;  // a second, by dtype
  double read_bytes = 0;                                   // a second, from memory
  double team_seconds = 0;                                 // from a call to the team's work and back
};

double read_rate(uint32_t threads) {
  const uint64_t cache = host_backend().discover().devices.front().machine.third_level_bytes;
  const uint64_t bytes = std::clamp(4 * cache, k_least_read_bytes, k_most_read_bytes) / threads;
  std::vector<std::vector<std::byte>> memory;
  for (uint32_t t = 0; t < threads; ++t) memory.emplace_back(bytes, std::byte{1});
  return best_rate(threads, static_cast<double>(bytes), [&](uint32_t t) { read_memory(memory[t]); });
}

double team_seconds(uint32_t threads) {
  double best = HUGE_VAL;
  for (int i = 0; i < k_repeats; ++i) {
    const auto start = Clock::now();
    for (uint64_t call = 0; call < k_team_calls; ++call) {
#pragma omp parallel num_threads(threads)
      asm volatile("");
    }
    best = std::min(best, seconds_since(start) / k_team_calls);
  }
  return best;
}

Roof measure_roof(uint32_t threads) {
  Roof roof{.threads = threads};
  for (const HostLoop& loop : host_loops()) roof.operations.emplace_back(loop.dtype, best_rate(threads, loop));
  roof.read_bytes = read_rate(threads);
  roof.team_seconds = team_seconds(threads);
  return roof;
}

/// A graph of one kernel, with the work and the memory traffic that nobody can do without.
struct Problem {
  std::string name, dtype, text;
  double operations = 0, bytes = 0;
};

Problem product(const std::string& dtype, int64_t m, int64_t n, int64_t k) {
  return {fmt::format("matmul {}x{}x{}", m, n, k), dtype,
          fmt::format("graph(%a: {0}[{1}, {3}], %b: {0}[{3}, {2}]) {{\n  %c = matmul(%a, %b)\n  return %c\n}}\n", dtype,
                      m, n, k),
          2.0 * static_cast<double>(m * n * k),
          static_cast<double>((m * k + k * n + m * n) * (dtype == "f32" ? 4 : 2))};
}

/// Causal where there are as many queries as keys.
Problem attention(const std::string& dtype, int64_t heads, int64_t queries, int64_t keys, int64_t dim) {
  const bool is_causal = queries == keys;
  const int64_t pairs = is_causal ? queries * (keys + 1) / 2 : queries * keys;
  return {fmt::format("attention {}x{}x{}x{}{}", heads, queries, keys, dim, is_causal ? " causal" : ""), dtype,
          fmt::format("graph(%q: {0}[1, {1}, {2}, {4}], %k: {0}[1, {1}, {3}, {4}], %v: {0}[1, {1}, {3}, {4}]) {{\n"
                      "  %out, %lse = attention(%q, %k, %v, none) {{causal = {5}, scale = 0.125}}\n  return %out\n}}\n",
                      dtype, heads, queries, keys, dim, is_causal),
          4.0 * static_cast<double>(heads * pairs * dim),
          2.0 * static_cast<double>(heads * (queries + keys) * dim * (dtype == "f32" ? 4 : 2))};
}

std::vector<Problem> problems(const std::string& dtype, bool is_quick) {
  if (is_quick) return {product(dtype, 128, 128, 128)};
  return {product(dtype, 1'024, 1'024, 1'024),   product(dtype, 128, 128, 128),
          product(dtype, 100, 1'000, 300),       product(dtype, 1, 4'096, 4'096),
          attention(dtype, 8, 1'024, 1'024, 64), attention(dtype, 16, 1, 4'096, 128)};
}

/// The least time that a roof allows.
double least_seconds(const Problem& problem, const Roof& roof) {
  const auto rate = std::ranges::find(roof.operations, problem.dtype, &std::pair<std::string, double>::first);
  const double computing = rate == roof.operations.end() ? 0 : problem.operations / rate->second;
  return std::max(computing, problem.bytes / roof.read_bytes);
}

/// The median of runs over made-up inputs. [seconds]
Expected<double> time_program(const Program& program, uint32_t threads) {
  std::mt19937_64 random(0);
  std::vector<Buffer> buffers;
  for (const auto* layouts : {&program.inputs(), &program.outputs()}) {
    for (const TensorLayout& layout : *layouts) buffers.emplace_back(layout);
  }
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (i < program.inputs().size()) {
      fill_random(buffers[i], random);
      inputs.push_back(buffers[i].data());
    } else {
      outputs.push_back(buffers[i].data());
    }
  }
  KILN_RETURN_IF_ERROR(program.run(inputs, outputs, threads));
  std::vector<double> seconds;
  for (const auto begin = Clock::now(); seconds.size() < k_most_runs && seconds_since(begin) < k_sample_seconds;) {
    const auto start = Clock::now();
    KILN_RETURN_IF_ERROR(program.run(inputs, outputs, threads));
    seconds.push_back(seconds_since(start));
  }
  std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2));
  return seconds[seconds.size() / 2];
}

/// What was measured of a problem on each number of threads.
Expected<Json> measure(Client& client, const Problem& problem, const std::vector<Roof>& roofs) {
  KILN_ASSIGN_OR_RETURN(const Graph graph, parse_text(problem.text));
  Json results = Json::array();
  for (const Roof& roof : roofs) {
    KILN_ASSIGN_OR_RETURN(const Client::Compiled compiled,
                          client.compile(graph, {.tune = true, .threads = roof.threads}));
    KILN_ASSIGN_OR_RETURN(const double seconds, time_program(*compiled.program, roof.threads));
    results.push_back({{"name", problem.name},
                       {"dtype", problem.dtype},
                       {"threads", roof.threads},
                       {"seconds", seconds},
                       {"operations_per_second", problem.operations / seconds},
                       {"share_of_roof", least_seconds(problem, roof) / seconds}});
  }
  return results;
}

Json to_json(const Roof& roof) {
  Json operations = Json::object();
  for (const auto& [dtype, rate] : roof.operations) operations[dtype] = rate;
  return {{"threads", roof.threads},
          {"operations_per_second", operations},
          {"read_bytes_per_second", roof.read_bytes},
          {"team_seconds", roof.team_seconds}};
}

void print_roofs(const Output& out, const std::vector<Roof>& roofs) {
  std::vector<std::string> headings = {"THREADS"};
  for (const auto& [dtype, rate] : roofs.front().operations) headings.push_back(fmt::format("{} GF/s", dtype));
  headings.insert(headings.end(), {"READ GB/s", "TEAM"});
  Table table(headings);
  for (const Roof& roof : roofs) {
    std::vector<std::string> cells = {std::to_string(roof.threads)};
    for (const auto& [dtype, rate] : roof.operations) cells.push_back(fmt::format("{:.1f}", rate * 1e-9));
    cells.push_back(fmt::format("{:.1f}", roof.read_bytes * 1e-9));
    cells.push_back(fmt::format("{:.2f} us", roof.team_seconds * 1e6));
    table.add(std::move(cells));
  }
  out.print_table(table);
}

void print_kernels(const Output& out, const Json& kernels) {
  Table table({"KERNEL", "DTYPE", "THREADS", "TIME", "GF/s", "OF ROOF"});
  for (const Json& kernel : kernels) {
    table.add({kernel.value("name", ""), kernel.value("dtype", ""), std::to_string(kernel.value("threads", 0)),
               fmt::format("{:.1f} us", kernel.value("seconds", 0.0) * 1e6),
               fmt::format("{:.1f}", kernel.value("operations_per_second", 0.0) * 1e-9),
               fmt::format("{:.0f} %", kernel.value("share_of_roof", 0.0) * 100)});
  }
  out.line("");
  out.print_table(table);
}

ExitCode run_bench(Session& session, bool is_quick) {
  LoadedConfig config = session.loaded();
  config.values.deterministic = false;
  KILN_CLI_ASSIGN(session, const auto client, Client::create(config));
  std::vector<Roof> roofs;
  Progress progress(session.out().quiet);
  progress.begin("what this machine can do at best");
  for (const uint32_t threads : {1u, std::max(1u, std::thread::hardware_concurrency())}) {
    if (roofs.empty() || roofs.back().threads != threads) roofs.push_back(measure_roof(threads));
  }
  progress.clear();
  Json kernels = Json::array();
  for (const HostLoop& loop : host_loops()) {
    for (const Problem& problem : problems(std::string(loop.dtype), is_quick)) {
      KILN_CLI_ASSIGN(session, const Json measured, measure(*client, problem, roofs));
      kernels.insert(kernels.end(), measured.begin(), measured.end());
    }
  }
  const Output& out = session.out();
  if (out.json) {
    Json limits = Json::array();
    for (const Roof& roof : roofs) limits.push_back(to_json(roof));
    out.print_json(
        {{"processor", host_backend().discover().devices.front().name}, {"roofs", limits}, {"kernels", kernels}});
    return ExitCode::ok;
  }
  out.line(escaped(host_backend().discover().devices.front().name));
  print_roofs(out, roofs);
  print_kernels(out, kernels);
  return ExitCode::ok;
}

}  // namespace

Action add_bench(CommandLine& line) {
  auto is_quick = std::make_shared<bool>(false);
  line.flag("--quick", *is_quick, "A small product of each dtype only");
  return [is_quick](Session& session) { return run_bench(session, *is_quick); };
}

}  // namespace kiln::cli
