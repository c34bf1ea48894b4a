#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/client.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/text/text.h"

/// What tests of programs on a device share: the product's own daemon in directories of the test's, and results compared
/// with the reference.
namespace kiln::testing {

inline std::vector<Tensor> inputs_of(const Graph& graph) {
  std::vector<Tensor> inputs;
  for (const ValueId value : graph.inputs()) {
    std::vector<int64_t> dims;
    for (const Dim& dim : graph.type(value).shape) dims.push_back(dim.constant());
    Tensor& tensor = inputs.emplace_back(Tensor::zeros(graph.type(value).dtype, dims));
    for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, std::sin(static_cast<double>(i + 3 * inputs.size())));
  }
  return inputs;
}

/// A tensor's copy on the device, or room for one.
class OnDevice {
 public:
  OnDevice(DeviceStream& stream, size_t bytes) : m_stream(stream), m_bytes(bytes) {
    m_memory = std::move(*DeviceMemory::allocate(stream.device(), bytes));
  }
  void upload(const void* from) { EXPECT_TRUE(m_stream.upload(m_memory.get(), from, m_bytes).ok()); }
  std::vector<float> download() const {
    std::vector<float> values(m_bytes / sizeof(float));
    EXPECT_TRUE(m_stream.download(values.data(), m_memory.get(), m_bytes).ok());
    return values;
  }
  void* get() const { return m_memory.get(); }

 private:
  DeviceStream& m_stream;
  size_t m_bytes;
  DeviceMemory m_memory;
};

/// Of sums of 65 terms: 2^-24 * 65 is 4e-6.
inline constexpr double k_f32_tolerance = 1e-5;

/// Runs the program on the client's device with host arrays and compares all results with the reference, to within
/// `tolerance` of 1 and of themselves.
inline void check_results(Client& client, const Program& program, const Graph& graph,
                          double tolerance = k_f32_tolerance) {
  DeviceStream& stream = *client.stream();
  const std::vector<Tensor> inputs = inputs_of(graph);
  const auto expected = evaluate_exact(graph, inputs);
  ASSERT_TRUE(expected.ok());
  std::vector<OnDevice> sources, results;
  std::vector<const void*> source_pointers;
  std::vector<void*> result_pointers;
  for (const Tensor& input : inputs) {
    sources.emplace_back(stream, input.bytes.size()).upload(input.bytes.data());
    source_pointers.push_back(sources.back().get());
  }
  for (const auto& values : *expected) {
    result_pointers.push_back(results.emplace_back(stream, values.size() * sizeof(float)).get());
  }
  const Status ran = program.run(source_pointers, result_pointers, 1);
  ASSERT_TRUE(ran.ok()) << ran.to_string();
  for (size_t r = 0; r < results.size(); ++r) {
    const auto got = results[r].download();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], (*expected)[r][i], tolerance * (1 + std::abs((*expected)[r][i])))
          << "output " << r << ", " << i;
    }
  }
}

/// A product with a bias and an activation, a softmax over it, and something beside.
inline constexpr const char* k_product_and_softmax = R"(graph(%x: f32[37, 65], %w: f32[65, 33], %b: f32[33]) {
  %m = matmul(%x, %w)
  %s = add(%m, %b)
  %t = tanh(%s)
  %y = softmax(%t) {dim = 1}
  %e = exp(%x)
  return %y, %e
}
)";

class DevicePrograms : public ::testing::Test {
 protected:
  /// `worker`: the program that compiles and checks.
  explicit DevicePrograms(std::string worker) : m_worker(std::move(worker)) {}

  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "kiln-device-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    m_directory = pattern;
    std::filesystem::create_directory(m_directory / "run");
    std::filesystem::permissions(m_directory / "run", std::filesystem::perms::owner_all);
    set("KILN_CACHE_DIR", m_directory / "cache");
    set("XDG_STATE_HOME", m_directory / "state");
    set("XDG_RUNTIME_DIR", m_directory / "run");
    set("KILN_DAEMON_PATH", KILND);
    set("KILN_WORKER_PATH", m_worker);
    set("KILN_DAEMON_IDLE_EXIT_MS", "60000");
    set("KILN_DAEMON_START_TIMEOUT_MS", "20000");
    unsetenv("KILN_NO_DAEMON");
  }
  void TearDown() override {
    if (m_directory.empty()) return;
    stop_daemon();
    std::filesystem::remove_all(m_directory);
  }

  static void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

  /// It has the environment of who starts it: so does every change to a stand-in begin.
  static void stop_daemon() {
    unsetenv("KILN_NO_DAEMON");
    const auto loaded = load_config(ConfigSources::from_process({}, std::nullopt));
    Connection connection(loaded->values);
    static_cast<void>(connection.command({.verb = protocol::Verb::shutdown}, deadline_in(20'000), false));
  }

  static std::unique_ptr<Client> client_of(std::string_view device) {
    auto client = Client::create(std::nullopt, std::nullopt, device);
    if (!client.ok()) throw std::runtime_error(client.status().to_string());
    return std::move(*client);
  }
  static nlohmann::json stats_of(const Client& client) { return nlohmann::json::parse(client.stats_json()); }

  static Graph parse(const char* text) {
    auto graph = parse_text(text);
    if (!graph.ok()) throw std::runtime_error(graph.status().to_string());
    return std::move(*graph);
  }

  /// One client has the graph built and checked on the device, the next one finds it mapped.
  static void expect_built_then_mapped(std::string_view device, const Graph& graph,
                                       double tolerance = k_f32_tolerance) {
    for (const char* how : {"built", "mapped hit"}) expect_compiled(device, graph, how, tolerance);
  }

  /// What was made where the device is not is checked where it is, and compiled no more; then it is a mapped hit, without a
  /// daemon.
  static void expect_checked_then_mapped(std::string_view device, const Graph& graph) {
    EXPECT_EQ(expect_compiled(device, graph, "checked", k_f32_tolerance)["compilations"], 0);
    stop_daemon();
    set("KILN_NO_DAEMON", "1");
    expect_compiled(device, graph, "mapped hit", k_f32_tolerance);
    unsetenv("KILN_NO_DAEMON");
  }

  std::filesystem::path m_directory;

 private:
  /// Answers the client's counters.
  static nlohmann::json expect_compiled(std::string_view device, const Graph& graph, std::string_view how,
                                        double tolerance) {
    const auto client = client_of(device);
    const auto compiled = client->compile(graph, {});
    EXPECT_TRUE(compiled.ok()) << compiled.status().to_string();
    if (!compiled.ok()) return {};
    EXPECT_EQ(compiled->how, how);
    check_results(*client, *compiled->program, graph, tolerance);
    return stats_of(*client);
  }

  std::string m_worker;
};

}  // namespace kiln::testing
