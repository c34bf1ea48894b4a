// A client for fault tests. Graph number N is a small network of its own shape, so that different numbers are different
// programs; results are compared with the f64 reference.
//
//   compile N…      each: "N ok STATISTICS", or "N error CODE MESSAGE"; "N wrong …" and exit 3 for a wrong result, or for
//                   memory that is writable and executable
//   fork N M        compiles N; parent and child run N and compile M, at once
//   fork-team T     runs a program on T threads; parent and child run it again, and the child has no other thread then
//   flight S N…     for S seconds runs what it compiled once, and again what a new client of its finds; then as compile
//   leave N         exits while another thread compiles N
//
// FAULT_UID, when set by root, is whom it becomes first. FAULT_ERRORS, when set, is the file that its stderr goes to.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "client/include/kiln.hpp"
#include "frontend/ops/element_evaluator.h"
#include "frontend/text/text.h"

namespace {

constexpr int k_wrong_result = 3;

std::string text_of(long number) {
  const long rows = 5 + number % 7, columns = 9 + number % 11, inner = 6 + number % 5;
  std::string text =
      "graph(%x: f32[R, I], %w: f32[I, C], %b: f32[C]) {\n  %h = matmul(%x, %w)\n  %s = add(%h, %b)\n"
      "  %y = softmax(%s) {dim = 1}\n  %z = mul(%y, %s)\n  return %z, %h\n}\n";
  const auto replace = [&](const std::string& from, long to) {
    for (size_t at; (at = text.find(from)) != std::string::npos;)
      text.replace(at + 1, from.size() - 1, std::to_string(to));
  };
  replace("[R", rows), replace("[I", inner), replace(" I", inner), replace(" C", columns), replace("[C", columns);
  return text;
}

/// One graph's inputs and what must come out.
class Case {
 public:
  explicit Case(long number) : m_graph(kiln::parse_text(text_of(number)).value()) {
    std::mt19937 random(static_cast<unsigned>(number));
    std::normal_distribution<double> normal;
    for (kiln::ValueId value : m_graph.inputs()) {
      std::vector<int64_t> dims;
      for (const auto& dim : m_graph.type(value).shape) dims.push_back(dim.constant());
      m_inputs.push_back(kiln::Tensor::zeros(kiln::DType::f32, dims));
      for (int64_t i = 0; i < m_inputs.back().elements(); ++i) m_inputs.back().set(i, normal(random));
    }
    m_expected = kiln::evaluate_exact(m_graph, m_inputs).value();
  }

  bool is_right(const kiln::api::Program& program) const {
    std::vector<const void*> sources;
    for (const auto& tensor : m_inputs) sources.push_back(tensor.bytes.data());
    std::vector<std::vector<float>> results;
    std::vector<void*> targets;
    for (const auto& values : m_expected) results.emplace_back(values.size(), std::nanf(""));
    for (auto& result : results) targets.push_back(result.data());
    program.run(sources, targets, 1);
    for (size_t o = 0; o < results.size(); ++o) {
      for (size_t i = 0; i < results[o].size(); ++i) {
        if (!(std::abs(static_cast<double>(results[o][i]) - m_expected[o][i]) < 1e-5)) return false;
      }
    }
    return true;
  }

 private:
  kiln::Graph m_graph;
  std::vector<kiln::Tensor> m_inputs;
  std::vector<std::vector<double>> m_expected;
};

/// Is any memory of this process writable and executable?
bool has_writable_code() {
  std::ifstream maps("/proc/self/maps");
  for (std::string range, rights, rest; maps >> range >> rights && std::getline(maps, rest);) {
    if (rights.starts_with("rwx")) return true;
  }
  return false;
}

/// Exit code: 0 unless a result was wrong. An error is an answer too.
int compile(kiln::api::Client& client, long number) {
  try {
    const kiln::api::Program program = client.compile(kiln::api::Graph(text_of(number)));
    const bool right = Case(number).is_right(program) && !has_writable_code();
    std::printf("%ld %s %s\n", number, right ? "ok" : "wrong", client.stats().c_str());
    std::fflush(stdout);
    return right ? 0 : k_wrong_result;
  } catch (const kiln::api::Error& error) {
    std::printf("%ld error %d %s\n", number, error.code(), error.what());
    std::fflush(stdout);
    return 0;
  }
}

int fork_and_compile(long first, long second) {
  kiln::api::Client client;
  const kiln::api::Program program = client.compile(kiln::api::Graph(text_of(first)));
  std::fflush(stdout);
  const pid_t child = fork();
  const int result = Case(first).is_right(program) ? compile(client, second) : k_wrong_result;
  if (child == 0) _exit(result);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? result : 4;
}

size_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

int fork_after_a_team_ran(uint32_t threads) {
  constexpr size_t k_elements = size_t{1} << 20;
  kiln::api::Client client;
  const kiln::api::Program program =
      client.compile(kiln::api::Graph("graph(%x: f32[1024, 1024]) {\n  %y = neg(%x)\n  return %y\n}\n"));
  const std::vector<float> source(k_elements, 3.0F);
  const auto is_right = [&] {
    std::vector<float> result(k_elements);
    program.run({source.data()}, {result.data()}, threads);
    return std::ranges::count(result, -3.0F) == std::ssize(result);
  };
  const size_t before = threads_of_this_process();
  if (!is_right() || threads_of_this_process() == before) return 5;
  const pid_t child = fork();
  if (child == 0) _exit(is_right() && threads_of_this_process() == 1 ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 4;
  if (!is_right()) return k_wrong_result;
  std::printf("right\n");
  return 0;
}

/// Every result is right or an error, however the files change meanwhile.
int fly(double seconds, const std::vector<long>& numbers) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  kiln::api::Client first;
  std::vector<std::pair<Case, kiln::api::Program>> kept;
  for (const long number : numbers) kept.emplace_back(Case(number), first.compile(kiln::api::Graph(text_of(number))));
  int result = 0;
  size_t runs = 0, errors = 0;
  while (std::chrono::steady_clock::now() < end && result == 0) {
    for (const auto& [known, program] : kept) result = known.is_right(program) ? result : k_wrong_result, ++runs;
    kiln::api::Client fresh;
    for (size_t i = 0; i < numbers.size(); ++i) {
      try {
        const kiln::api::Program found = fresh.compile(kiln::api::Graph(text_of(numbers[i])));
        result = kept[i].first.is_right(found) ? result : k_wrong_result, ++runs;
      } catch (const kiln::api::Error&) {
        ++errors;
      }
    }
  }
  std::printf("%zu runs, %zu errors\n", runs, errors);
  return result;
}

[[noreturn]] void leave_while_compiling(long number) {
  static kiln::api::Client client;
  std::thread([number] { (void)compile(client, number); }).detach();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  std::exit(0);
}

int run(int argc, char** argv) {
  const std::string verb = argc > 2 ? argv[1] : "";
  if (verb == "fork" && argc == 4) return fork_and_compile(std::atol(argv[2]), std::atol(argv[3]));
  if (verb == "fork-team") return fork_after_a_team_ran(static_cast<uint32_t>(std::atol(argv[2])));
  if (verb == "flight" && argc > 3) {
    std::vector<long> numbers;
    for (int i = 3; i < argc; ++i) numbers.push_back(std::atol(argv[i]));
    return fly(std::atof(argv[2]), numbers);
  }
  if (verb == "leave") leave_while_compiling(std::atol(argv[2]));
  if (verb != "compile") return 2;
  kiln::api::Client client;
  int result = 0;
  for (int i = 2; i < argc; ++i) result = std::max(result, compile(client, std::atol(argv[i])));
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* uid = std::getenv("FAULT_UID")) {
    const auto id = static_cast<uid_t>(std::atol(uid));
    if (setgid(id) != 0 || setuid(id) != 0) return 5;
  }
  if (const char* errors = std::getenv("FAULT_ERRORS")) {
    if (std::freopen(errors, "a", stderr) == nullptr) return 5;
  }
  try {
    return run(argc, argv);
  } catch (const kiln::api::Error& error) {
    std::printf("0 error %d %s\n", error.code(), error.what());
    return 0;
  }
}
