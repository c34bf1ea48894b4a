// Graphs whose tensors live on the device, through the product's daemon, workers and cache, fed from host arrays: built
// where the device is and where it is not, drivers that change, a compiler that ends its process.
#include <cstdlib>
#include <fstream>

#include "backends/level_zero/runtime/runtime.h"
#include "tests/stand_ins/device_programs.h"

namespace kiln {
namespace {

using testing::k_product_and_softmax;

class LevelZeroPrograms : public testing::DevicePrograms {
 protected:
  LevelZeroPrograms() : DevicePrograms(KILN_WORKER) {}

  void SetUp() override {
    const Discovery& discovery = level_zero::LevelZeroRuntimeBackend().discover();
    if (!discovery.status.ok()) GTEST_SKIP() << discovery.status.to_string();
    DevicePrograms::SetUp();
  }

  /// The command line on a host that lacks the device; the daemon that it starts lacks it too.
  static int run_without_device(const std::string& arguments) {
    return std::system(("env -u ZE_ENABLE_ALT_DRIVERS " KILN_CLI " " + arguments).c_str());
  }
};

TEST_F(LevelZeroPrograms, a_graph_is_compiled_checked_and_run_on_the_device) {
  expect_built_then_mapped("level_zero", parse(k_product_and_softmax));
}

TEST_F(LevelZeroPrograms, what_was_made_without_the_device_is_not_compiled_again_where_it_is) {
  const std::string file = m_directory / "graph.kiln";
  std::ofstream(file) << k_product_and_softmax;
  ASSERT_EQ(run_without_device("warm " + file + " --target pvc,dg2"), 0);
  ASSERT_EQ(run_without_device("ls --target pvc | grep -q unchecked"), 0);
  ASSERT_EQ(run_without_device("daemon stop"), 0);
  expect_checked_then_mapped("level_zero", parse(k_product_and_softmax));
}

constexpr const char* k_product_of_halves = R"(graph(%x: f16[70, 96], %w: f16[96, 40]) {
  %m = matmul(%x, %w)
  %y = cast(%m) {dtype = f32}
  return %y
}
)";
constexpr double k_f16_tolerance = 1e-3;  // the product is rounded to 11 bits

TEST_F(LevelZeroPrograms, a_product_of_halves_runs_on_devices_with_matrix_units_and_without) {
  const Graph graph = parse(k_product_of_halves);
  for (const char* fault : {"", "no-matrix-units", "no-matrix-functions"}) {
    SCOPED_TRACE(fault);
    set("STAND_IN_FAULT", fault);
    expect_built_then_mapped("level_zero", graph, k_f16_tolerance);
    stop_daemon();
    std::filesystem::remove_all(m_directory / "cache");
  }
  unsetenv("STAND_IN_FAULT");
}

TEST_F(LevelZeroPrograms, code_made_for_matrix_units_is_made_anew_where_the_device_has_none) {
  const std::string file = m_directory / "graph.kiln";
  std::ofstream(file) << k_product_of_halves;
  ASSERT_EQ(run_without_device("warm " + file + " --target pvc"), 0);
  ASSERT_EQ(run_without_device("daemon stop"), 0);
  set("STAND_IN_FAULT", "no-matrix-units");
  const auto client = client_of("level_zero");
  const Graph graph = parse(k_product_of_halves);
  const auto compiled = client->compile(graph, {});
  unsetenv("STAND_IN_FAULT");
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  EXPECT_GT(stats_of(*client)["compilations"], 0);
  testing::check_results(*client, *compiled->program, graph, k_f16_tolerance);
}

TEST_F(LevelZeroPrograms, a_compiler_that_ends_its_process_is_a_typed_error) {
  set("STAND_IN_FAULT", "compiler-exits");
  const Graph graph = parse(k_product_and_softmax);
  const auto compiled = client_of("level_zero")->compile(graph, {});
  unsetenv("STAND_IN_FAULT");
  EXPECT_EQ(compiled.status().code(), StatusCode::aborted) << compiled.status().to_string();
  EXPECT_TRUE(client_of("")->compile(graph, {}).ok()) << "the host's own code is another matter";
}

}  // namespace
}  // namespace kiln
