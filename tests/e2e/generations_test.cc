// Later generations of a program as processes meet them: who runs keeps what it has, the next one maps what is newer.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "backends/devices.h"
#include "base/processor_times.h"
#include "client/include/kiln.hpp"
#include "frontend/canonical/canonical.h"
#include "frontend/text/text.h"
#include "frontend/wire/wire.h"
#include "jit/build/build.h"
#include "jit/worker/process_runner.h"
#include "service/store_entries.h"
#include "tests/cli/cli_process.h"
#include "tests/jit/build/other_candidates.h"

namespace kiln {
namespace {

using nlohmann::json;

/// A product of some milliseconds.
constexpr const char* k_product = R"(graph(%x: f32[384, 768], %w: f32[768, 512]) {
  %y = matmul(%x, %w)
  return %y
}
)";

class Generations : public testing::Test {
 protected:
  std::string graph() const { return m_world.write("product.kiln", k_product); }
  /// What a process that starts now runs.
  json run() const { return m_world.kiln({"run", graph(), "--check", "--json"}).json(); }

  CliWorld m_world;
};

/// Its result, bit by bit, and its generation.
std::pair<std::vector<float>, int> run_here(const api::Program& program) {
  std::vector<float> x(384 * 768), w(768 * 512), y(384 * 512);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) / 97 - 0.4F;
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 89) / 89 - 0.5F;
  program.run({x.data(), w.data()}, {y.data()}, 1);
  return {y, json::parse(program.describe())["generation"].get<int>()};
}

TEST_F(Generations, AProcessKeepsWhatItRunsAndTheNextOneMapsWhatIsNewer) {
  EXPECT_EQ(run()["generation"], 0);
  const api::Graph product(k_product);
  api::Client client(m_world.cache().c_str());  // everything is there: it asks no daemon
  const auto first = run_here(client.compile(product));
  EXPECT_EQ(first.second, 0);
  ASSERT_EQ(m_world.kiln({"warm", graph(), "--tune"}).exit_status, 0);
  EXPECT_EQ(run_here(client.compile(product)), first);
  EXPECT_GT(run()["generation"], 0);
}

TEST_F(Generations, ABadOrderIsRecoveredFromInTheBackground) {
#ifdef KILN_IS_SANITIZED
  GTEST_SKIP() << "what sanitizers run beside it disturbs every sample";
#endif
  auto parsed = parse_text(k_product);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  const Target target = open_device({}).value().targets.front();
  const std::vector<uint8_t> wire = to_wire(canonicalise(*parsed).graph);
  const BuildEnvironment environment{
      .make_runner = [](const Target&) { return ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH}); }};
  const auto bad = build({wire, {target}, m_world.cache()}, badly_ordered, environment);
  ASSERT_TRUE(bad.ok()) << bad.status().to_string();
  {
    Config config;
    config.cache_directory = m_world.cache();
    auto store = open_entry_store(config);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    ASSERT_TRUE((*store)->publish(*bad, wire, false).ok());
  }

  m_world.set("KILN_AUTOTUNE_MODE", "background");
  const auto planted = run();
  EXPECT_EQ(planted["found"], "mapped hit") << "the daemon's builds have the same key";
  EXPECT_EQ(planted["generation"], 0);
  ASSERT_EQ(m_world.kiln({"daemon", "start"}).exit_status, 0);
  const auto is_tuned = [&] {
    const auto status = m_world.kiln({"status", "--json"}).json();
    return status["counters"]["kernels_tuned"] > 0 && status["tuning"].is_null() && status["has_untuned"] == false;
  };
  ProcessorWatch watch;
  (void)watch.busy_processors();
  for (int i = 0; i < 60 && !is_tuned(); ++i) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (!is_tuned()) GTEST_SKIP() << "this machine was never quiet: " << watch.busy_processors().value_or(-1);

  const auto later = run();
  EXPECT_EQ(later["found"], "mapped hit");
  EXPECT_GT(later["generation"], 0);
  EXPECT_EQ(later["outputs"][0]["right"], true);
  const auto listed = m_world.kiln({"ls", "--kind", "record", "--json"}).json();
  ASSERT_EQ(listed["entries"].size(), 1);
  const auto record = m_world.kiln({"show", listed["entries"][0]["digest"], "--json"}).json()["entry"]["record"];
  EXPECT_NE(record["winner"], 0) << record;
}

}  // namespace
}  // namespace kiln
