// What lies above the backends, for a device that a host may have or lack: programs on its memory, code compiled where it
// is not there and checked where it is, drivers that change, compilers that are missing or die. The device is the toy;
// daemon, worker and device executor are the product's.

#include "tests/stand_ins/device_programs.h"
#include "tests/stand_ins/toy/toy_device.h"

namespace kiln {
namespace {

using testing::check_results;
using testing::OnDevice;

// A matrix product with an epilogue, a softmax over what it gives, and a constant that broadcasts.
constexpr const char* k_graph = R"(graph(%x: f32[37, 65], %w: f32[65, 33]) {
  %m = matmul(%x, %w)
  %half = full() {shape = [], value = 0.5, dtype = f32}
  %s = mul(%m, %half)
  %y = softmax(%s) {dim = 1}
  %e = exp(%x)
  return %y, %e
}
)";

constexpr const char* k_gather = R"(graph(%table: f32[10, 4], %i: i64[3]) {
  %y = index_select(%table, %i) {dim = 0}
  return %y
}
)";

constexpr const char* k_two_kernels = R"(graph(%x: f32[4, 4]) {
  %square = matmul(%x, %x)
  %cube = matmul(%square, %x)
  return %cube
}
)";

class ToyPrograms : public testing::DevicePrograms {
 protected:
  ToyPrograms() : DevicePrograms(TOY_WORKER) {}

  void SetUp() override {
    DevicePrograms::SetUp();
    for (const char* name : {"TOY_DRIVER", "TOY_COMPILER", "KILN_PACKS_PATH", "KILN_PACKS_TRUST"}) unsetenv(name);
  }

  static void install_driver(const std::string& version) {
    stop_daemon();
    set("TOY_DRIVER", version);
  }

  /// The graph built for the toy from a process that has none, as `kiln warm --target` does.
  static protocol::Built warm(const char* text = k_graph) {
    const auto built = client_of("")->build_for(parse(text), {std::string(toy::k_target)}, {});
    EXPECT_TRUE(built.ok()) << built.status().to_string();
    return built.ok() ? *built : protocol::Built{};
  }
};

TEST_F(ToyPrograms, what_was_built_without_the_device_is_checked_at_its_first_use_there_and_then_a_mapped_hit) {
  const protocol::Built built = warm();
  EXPECT_GT(built.compilations, 0u);
  EXPECT_NE(built.report.find("\"verified\":false"), std::string::npos) << built.report;
  EXPECT_EQ(warm().compilations, 0u) << "it is there";

  install_driver("7");
  const Graph graph = parse(k_graph);
  {
    const auto client = client_of("toy");
    const auto compiled = client->compile(graph, {});
    ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
    EXPECT_EQ(compiled->how, "checked");
    const auto stats = stats_of(*client);
    EXPECT_EQ(stats["compilations"], 0);
    EXPECT_EQ(stats["hits_deferred"], 1);
    EXPECT_EQ(stats["misses"], 0);
    check_results(*client, *compiled->program, graph);
  }
  stop_daemon();
  set("KILN_NO_DAEMON", "1");
  const auto client = client_of("toy:0");
  const auto compiled = client->compile(graph, {});
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  EXPECT_EQ(compiled->how, "mapped hit");
  EXPECT_EQ(stats_of(*client)["hits_mapped"], 1);
  EXPECT_EQ(stats_of(*client)["compilations"], 0);
  check_results(*client, *compiled->program, graph);
}

TEST_F(ToyPrograms, what_a_pack_has_from_where_no_device_is_is_checked_at_its_first_use_in_a_fresh_cache) {
  warm();
  const std::string keys = m_directory / "keys", packs = m_directory / "packs";
  std::filesystem::create_directory(packs);
  const auto kiln = [](const std::string& arguments) { return std::system((KILN_CLI " -q " + arguments).c_str()); };
  ASSERT_EQ(kiln("key create " + keys), 0);
  ASSERT_EQ(kiln("pack create " + packs + "/toy.kpack --sign " + keys + "/kiln.key"), 0);
  install_driver("7");
  set("KILN_CACHE_DIR", m_directory / "fresh");
  set("KILN_PACKS_PATH", packs);
  set("KILN_PACKS_TRUST", keys);
  expect_checked_then_mapped("toy", parse(k_graph));
}

TEST_F(ToyPrograms, nothing_unchecked_runs_where_no_daemon_can_check_it) {
  warm();
  install_driver("7");
  set("KILN_NO_DAEMON", "1");
  const auto compiled = client_of("toy")->compile(parse(k_graph), {});
  EXPECT_EQ(compiled.status().code(), StatusCode::unavailable);
  EXPECT_NE(compiled.status().message().find("not checked on one yet"), std::string::npos)
      << compiled.status().message();
}

TEST_F(ToyPrograms, native_code_of_another_driver_is_a_miss_and_made_anew_from_the_portable_form) {
  warm();
  const Graph graph = parse(k_graph);
  install_driver("7");
  ASSERT_TRUE(client_of("toy")->compile(graph, {}).ok());
  install_driver("8");
  toy::loads() = {};
  const auto client = client_of("toy");
  const auto compiled = client->compile(graph, {});
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  EXPECT_EQ(compiled->how, "checked");
  EXPECT_GT(toy::loads().native, 0);
  EXPECT_EQ(toy::loads().portable, 0);
  check_results(*client, *compiled->program, graph);
}

TEST_F(ToyPrograms, a_device_that_is_there_has_its_code_compiled_and_checked_at_once) {
  install_driver("7");
  const Graph graph = parse(k_graph);
  const auto client = client_of("toy");
  const auto compiled = client->compile(graph, {});
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  EXPECT_EQ(compiled->how, "built");
  EXPECT_EQ(stats_of(*client)["misses"], 1);
  check_results(*client, *compiled->program, graph);
}

TEST_F(ToyPrograms, pointers_of_the_host_and_indices_out_of_range_are_typed_errors_and_the_stream_goes_on) {
  install_driver("7");
  const auto client = client_of("toy");
  const auto compiled = client->compile(parse(k_gather), {});
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const std::vector<float> table(40, 1.5F);
  std::vector<int64_t> indices{1, 99, 2};
  std::vector<float> host(12);
  const void* host_inputs[] = {table.data(), indices.data()};
  void* host_outputs[] = {host.data()};
  EXPECT_EQ(compiled->program->run(host_inputs, host_outputs, 1).code(), StatusCode::invalid_argument);

  OnDevice on_table(*client->stream(), 160), on_indices(*client->stream(), 24), out(*client->stream(), 48);
  on_table.upload(table.data());
  on_indices.upload(indices.data());
  const void* inputs[] = {on_table.get(), on_indices.get()};
  void* outputs[] = {out.get()};
  EXPECT_EQ(compiled->program->run(inputs, outputs, 1).code(), StatusCode::out_of_range);
  indices[1] = 9;
  on_indices.upload(indices.data());
  EXPECT_TRUE(compiled->program->run(inputs, outputs, 1).ok());
  EXPECT_EQ(out.download(), std::vector<float>(12, 1.5F));
}

TEST_F(ToyPrograms, work_on_a_queue_of_the_callers_is_put_there_without_waiting) {
  install_driver("7");
  const auto client = client_of("toy");
  const auto compiled = client->compile(parse(k_gather), {});
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  OnDevice table(*client->stream(), 160), indices(*client->stream(), 24), out(*client->stream(), 48);
  const std::vector<float> rows(40, 2.5F), before(12, 0);
  const std::vector<int64_t> good{0, 1, 2};
  table.upload(rows.data());
  indices.upload(good.data());
  out.upload(before.data());
  const auto stream = client->stream_over(nullptr);
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(*stream, *client->stream_over(nullptr));
  const void* inputs[] = {table.get(), indices.get()};
  void* outputs[] = {out.get()};
  ASSERT_TRUE(compiled->program->launch(**stream, inputs, outputs).ok());
  EXPECT_EQ(out.download(), before) << "the toy's queues wait to be waited for";
  ASSERT_TRUE((*stream)->finish().ok());
  EXPECT_EQ(out.download(), std::vector<float>(12, 2.5F));
}

TEST_F(ToyPrograms, a_launch_works_in_the_scratch_it_is_given) {
  install_driver("7");
  const auto client = client_of("toy");
  const auto compiled = client->compile(parse(k_two_kernels), {});
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  const Program& program = *compiled->program;
  ASSERT_GE(program.launch_scratch_bytes(), 64U);
  EXPECT_FALSE(program.checks_indices());
  DeviceStream& stream = *client->stream();
  OnDevice x(stream, 64), out(stream, 64), scratch(stream, program.launch_scratch_bytes());
  const std::vector<float> ones(16, 1), before(program.launch_scratch_bytes() / sizeof(float), -7);
  x.upload(ones.data());
  scratch.upload(before.data());
  const void* inputs[] = {x.get()};
  void* outputs[] = {out.get()};
  ASSERT_TRUE(program.launch(stream, inputs, outputs, scratch.get()).ok());
  ASSERT_TRUE(stream.finish().ok());
  EXPECT_EQ(out.download(), std::vector<float>(16, 16));
  EXPECT_NE(scratch.download(), before);
}

TEST_F(ToyPrograms, no_device_no_compiler_and_a_compiler_that_dies_are_typed_errors_with_the_reason) {
  const auto none = Client::create(std::nullopt, std::nullopt, "toy");
  EXPECT_EQ(none.status().code(), StatusCode::unavailable);
  EXPECT_NE(none.status().message().find("TOY_DRIVER is not set"), std::string::npos) << none.status().message();

  install_driver("7");
  set("TOY_COMPILER", "absent");
  const auto absent = client_of("toy")->compile(parse(k_graph), {});
  EXPECT_EQ(absent.status().code(), StatusCode::failed_precondition) << absent.status().to_string();
  EXPECT_NE(absent.status().message().find("not on this host"), std::string::npos) << absent.status().message();

  stop_daemon();
  set("TOY_COMPILER", "dies");
  const auto client = client_of("toy");
  const auto dead = client->compile(parse(k_graph), {});
  EXPECT_EQ(dead.status().code(), StatusCode::aborted) << dead.status().to_string();
  unsetenv("TOY_COMPILER");
  EXPECT_FALSE(client->compile(parse(k_graph), {}).ok()) << "the key is in quarantine";
  EXPECT_TRUE(client_of("")->compile(parse(k_graph), {}).ok()) << "that of the host is not";
}

}  // namespace
}  // namespace kiln
