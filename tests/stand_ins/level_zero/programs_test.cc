// Graphs whose tensors live on the device, through the product's daemon, workers and cache, fed from host arrays: built
// where the device is and where it is not, drivers that change, a compiler that ends its process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backends/level_zero/runtime/runtime.h"
#include "client/client.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/text/text.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

// A product with a bias and an activation, in both precisions, a softmax over it, and a sum.
constexpr const char* k_graph = R"(graph(%x: f32[37, 65], %w: f32[65, 33], %b: f32[33]) {
  %m = matmul(%x, %w)
  %s = add(%m, %b)
  %t = tanh(%s)
  %y = softmax(%t) {dim = 1}
  %e = exp(%x)
  return %y, %e
}
)";

std::vector<Tensor> inputs_of(const Graph& graph) {
  std::vector<Tensor> inputs;
  for (const ValueId value : graph.inputs()) {
    std::vector<int64_t> dims;
    for (const Dim& dim : graph.type(value).shape) dims.push_back(dim.constant());
    Tensor& tensor = inputs.emplace_back(Tensor::zeros(graph.type(value).dtype, dims));
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, std::sin(static_cast<double>(i + 3 * inputs.size())));
  }
  return inputs;
}

class LevelZeroPrograms : public testing::Test {
 protected:
  void SetUp() override {
    const Discovery& discovery = level_zero::LevelZeroRuntimeBackend().discover();
    if (!discovery.status.ok()) GTEST_SKIP() << discovery.status.to_string();
    std::string pattern = fs::temp_directory_path() / "kiln-level-zero-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    m_directory = pattern;
    fs::create_directory(m_directory / "run");
    fs::permissions(m_directory / "run", fs::perms::owner_all);
    set("KILN_CACHE_DIR", m_directory / "cache");
    set("XDG_STATE_HOME", m_directory / "state");
    set("XDG_RUNTIME_DIR", m_directory / "run");
    set("KILN_DAEMON_PATH", KILND);
    set("KILN_WORKER_PATH", KILN_WORKER);
    set("KILN_DAEMON_IDLE_EXIT_MS", "60000");
    set("KILN_DAEMON_START_TIMEOUT_MS", "20000");
  }
  void TearDown() override {
    if (m_directory.empty()) return;
    stop_daemon();
    fs::remove_all(m_directory);
  }

  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
  /// It has the environment of who starts it: so does every change to the stand-in begin.
  static void stop_daemon() {
    const auto loaded = load_config(ConfigSources::from_process({}, std::nullopt));
    Connection connection(loaded->values);
    static_cast<void>(connection.command({.verb = protocol::Verb::shutdown}, deadline_in(20'000), false));
  }
  /// The command line on a host that lacks the device; the daemon that it starts lacks it too.
  static int run_without_device(const std::string& arguments) {
    return std::system(("env -u ZE_ENABLE_ALT_DRIVERS " KILN_CLI " " + arguments).c_str());
  }
  static std::unique_ptr<Client> client_of(std::string_view device) {
    auto client = Client::create(std::nullopt, std::nullopt, device);
    if (!client.ok()) throw std::runtime_error(client.status().to_string());
    return std::move(*client);
  }
  static nlohmann::json stats_of(const Client& client) { return nlohmann::json::parse(client.stats_json()); }

  fs::path m_directory;
};

/// Runs the program with host arrays, by way of the device's memory, and compares with the reference.
void check_results(Client& client, const Program& program, const Graph& graph) {
  DeviceStream& stream = *client.stream();
  const std::vector<Tensor> inputs = inputs_of(graph);
  const auto expected = evaluate_exact(graph, inputs);
  ASSERT_TRUE(expected.ok());
  std::vector<DeviceMemory> memory;
  std::vector<const void*> sources;
  std::vector<void*> results;
  for (const Tensor& input : inputs) {
    memory.push_back(std::move(*DeviceMemory::allocate(stream.device(), input.bytes.size())));
    ASSERT_TRUE(stream.upload(memory.back().get(), input.bytes.data(), input.bytes.size()).ok());
    sources.push_back(memory.back().get());
  }
  for (const auto& values : *expected) {
    memory.push_back(std::move(*DeviceMemory::allocate(stream.device(), values.size() * sizeof(float))));
    results.push_back(memory.back().get());
  }
  const Status ran = program.run(sources, results, 1);
  ASSERT_TRUE(ran.ok()) << ran.to_string();
  for (size_t r = 0; r < results.size(); ++r) {
    std::vector<float> got((*expected)[r].size());
    ASSERT_TRUE(stream.download(got.data(), results[r], got.size() * sizeof(float)).ok());
    for (size_t i = 0; i < got.size(); ++i) {
      // f32 with sums of 65 terms: 2^-24 * 65 is 4e-6.
      ASSERT_NEAR(got[i], (*expected)[r][i], 1e-5 * (1 + std::abs((*expected)[r][i]))) << "output " << r << ", " << i;
    }
  }
}

TEST_F(LevelZeroPrograms, a_graph_is_compiled_checked_and_run_on_the_device) {
  const Graph graph = std::move(*parse_text(k_graph));
  {
    const auto client = client_of("level_zero");
    const auto compiled = client->compile(graph, {});
    ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
    EXPECT_EQ(compiled->how, "built");
    check_results(*client, *compiled->program, graph);
  }
  const auto client = client_of("level_zero");
  const auto again = client->compile(graph, {});
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->how, "mapped hit");
  check_results(*client, *again->program, graph);
}

TEST_F(LevelZeroPrograms, what_was_made_without_the_device_is_not_compiled_again_where_it_is) {
  const std::string file = m_directory / "graph.kiln";
  std::ofstream(file) << k_graph;
  ASSERT_EQ(run_without_device("warm " + file + " --target pvc,dg2"), 0);
  ASSERT_EQ(run_without_device("ls --target pvc | grep -q unchecked"), 0);
  ASSERT_EQ(run_without_device("daemon stop"), 0);

  const Graph graph = std::move(*parse_text(k_graph));
  {
    const auto client = client_of("level_zero");
    const auto compiled = client->compile(graph, {});
    ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
    EXPECT_EQ(compiled->how, "checked");
    EXPECT_EQ(stats_of(*client)["compilations"], 0);
    check_results(*client, *compiled->program, graph);
  }
  stop_daemon();
  set("KILN_NO_DAEMON", "1");
  const auto client = client_of("level_zero");
  const auto again = client->compile(graph, {});
  unsetenv("KILN_NO_DAEMON");
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->how, "mapped hit");
  check_results(*client, *again->program, graph);
}

TEST_F(LevelZeroPrograms, a_compiler_that_ends_its_process_is_a_typed_error) {
  set("STAND_IN_FAULT", "compiler-exits");
  const Graph graph = std::move(*parse_text(k_graph));
  const auto compiled = client_of("level_zero")->compile(graph, {});
  unsetenv("STAND_IN_FAULT");
  EXPECT_EQ(compiled.status().code(), StatusCode::aborted) << compiled.status().to_string();
  EXPECT_TRUE(client_of("")->compile(graph, {}).ok()) << "the host's own code is another matter";
}

}  // namespace
}  // namespace kiln
