// Graphs whose tensors live on the device, through the product's daemon, workers, cache and CUDA backend, fed from host
// arrays: the emulated machine is behind the names of the vendor's driver and compiler.
#include <dlfcn.h>

#include <cstdlib>
#include <deque>
#include <fstream>

#include "client/framework_call.h"
#include "tests/stand_ins/device_programs.h"

namespace kiln {
namespace {

using testing::k_product_and_softmax;

// Operands that TMA takes as they lie, tails along m and n.
constexpr const char* k_half_product = R"(graph(%a: {0}[130, 128], %b: {0}[128, 136], %r: f32[130, 136]) {{
  %m = matmul(%a, %b)
  %c = cast(%m) {{dtype = f32}}
  %y = add(%c, %r)
  return %y
}}
)";

// One tile of queries, and so many keys that the multiprocessors of the device share them.
constexpr const char* k_few_queries = R"(graph(%q: f32[1, 2, 2, 16], %k: f32[1, 1, 1500, 16], %v: f32[1, 1, 1500, 16]) {
  %y, %lse = attention(%q, %k, %v, none) {causal = true, causal_offset = 1498, scale = 0.25}
  return %y, %lse
}
)";

// With a padded image before it, and gradients of both operands.
constexpr const char* k_convolution = R"(graph(%x: f32[2, 8, 18, 18], %w: f32[16, 8, 3, 3], %g: f32[2, 16, 18, 18]) {
  %y = convolution(%x, %w) {stride = [1, 1], padding = [1, 1], dilation = [1, 1]}
  %dx = convolution_backward_input(%g, %w) {stride = [1, 1], padding = [1, 1], dilation = [1, 1], extents = [18, 18]}
  %dw = convolution_backward_weight(%g, %x) {stride = [1, 1], padding = [1, 1], dilation = [1, 1], kernel = [3, 3]}
  return %y, %dx, %dw
}
)";

constexpr const char* k_lookup = R"(graph(%table: f32[10, 33], %i: i64[7]) {
  %rows = index_select(%table, %i) {dim = 0}
  %y = sum(%rows) {dims = [1], keep_dims = false}
  return %y
}
)";

class CudaPrograms : public testing::DevicePrograms {
 protected:
  CudaPrograms() : DevicePrograms(KILN_WORKER) {}

  void SetUp() override {
    DevicePrograms::SetUp();
    set("KILN_LIBRARIES_PATH", STAND_IN_DRIVER ":" STAND_IN_COMPILER);
  }

  /// The command line on a host that has the compiler alone; the daemon that it starts has no more.
  static int run_without_device(const std::string& arguments) {
    return std::system(("KILN_LIBRARIES_PATH=" STAND_IN_COMPILER " " KILN_CLI " " + arguments).c_str());
  }
};

TEST_F(CudaPrograms, a_graph_is_compiled_checked_and_run_on_the_device) {
  expect_built_then_mapped("cuda", parse(k_product_and_softmax));
}

TEST_F(CudaPrograms, tensor_cores_multiply_halves) {
  for (const auto& [dtype, eps] : {std::pair("f16", 1e-3), std::pair("bf16", 8e-3)}) {
    SCOPED_TRACE(dtype);
    expect_built_then_mapped("cuda", parse(fmt::format(fmt::runtime(k_half_product), dtype).c_str()), eps);
  }
}

TEST_F(CudaPrograms, convolutions_are_plans_where_a_library_makes_them) {
  set("KILN_LIBRARIES_PATH", STAND_IN_DRIVER ":" STAND_IN_COMPILER ":" STAND_IN_PLANS);
  expect_built_then_mapped("cuda", parse(k_convolution), 1e-3);  // sums of 648 terms that cancel each other
  const std::string file = m_directory / "codes";
  ASSERT_EQ(std::system((KILN_CLI " ls --kind code --json > " + file).c_str()), 0);
  const auto codes = nlohmann::json::parse(std::ifstream(file));
  size_t plans = 0;
  for (const auto& entry : codes.at("entries")) {
    for (const auto& head : entry.at("heads")) plans += head.value("schedule", "") == "cudnn choice 1" ? 1 : 0;
  }
  EXPECT_EQ(plans, 3u);
}

TEST_F(CudaPrograms, candidates_race_on_the_device_and_the_next_process_maps_the_winner) {
  const Graph graph = parse(fmt::format(fmt::runtime(k_half_product), "bf16").c_str());
  Client::CompileOptions tuned;
  tuned.tune = true;
  const auto compiled = client_of("cuda")->compile(graph, tuned);
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  EXPECT_TRUE(compiled->program->is_tuned());
  EXPECT_GT(compiled->program->generation(), 0u);
  const auto record = [&](const char* field) {
    const std::string file = m_directory / "record";
    const std::string list = KILN_CLI " ls --kind record --json > " + file;
    EXPECT_EQ(std::system(list.c_str()), 0);
    const auto entries = nlohmann::json::parse(std::ifstream(file)).at("entries");
    EXPECT_EQ(entries.size(), 1u) << entries.dump();
    const std::string show =
        KILN_CLI " show " + entries.at(0).at("heads").at(0).at("key").get<std::string>() + " --json > " + file;
    EXPECT_EQ(std::system(show.c_str()), 0);
    return nlohmann::json::parse(std::ifstream(file)).at("entry").at("record").at(field);
  };
  size_t timed = 0;
  for (const auto& candidate : record("candidates"))
    timed += candidate.value("seconds", nlohmann::json::array()).empty() ? 0 : 1;
  EXPECT_GE(timed, 2u);
  set("KILN_NO_DAEMON", "1");
  const auto client = client_of("cuda");
  const auto mapped = client->compile(graph, {});
  ASSERT_TRUE(mapped.ok()) << mapped.status().to_string();
  EXPECT_TRUE(mapped->program->is_tuned());
  testing::check_results(*client, *mapped->program, graph, 8e-3);
}

TEST_F(CudaPrograms, what_one_kernel_leaves_in_the_workspace_the_next_one_combines) {
  expect_built_then_mapped("cuda", parse(k_few_queries));
}

TEST_F(CudaPrograms, what_was_made_without_the_device_is_not_compiled_again_where_it_is) {
  const std::string file = m_directory / "graph.kiln";
  std::ofstream(file) << k_product_and_softmax;
  ASSERT_EQ(run_without_device("warm " + file + " --target sm_90a,sm_80"), 0);
  ASSERT_EQ(run_without_device("ls --target sm_90a | grep -q unchecked"), 0);
  ASSERT_EQ(run_without_device("daemon stop"), 0);
  expect_checked_then_mapped("cuda", parse(k_product_and_softmax));
}

TEST_F(CudaPrograms, a_daemon_that_finds_no_device_says_why_nothing_was_checked) {
  ASSERT_EQ(run_without_device("daemon start"), 0);
  const auto compiled = client_of("cuda")->compile(parse(k_product_and_softmax), {});
  EXPECT_EQ(compiled.status().code(), StatusCode::unavailable);
  EXPECT_NE(compiled.status().message().find("not checked on one yet: no device of cuda:sm_90a: cuda: no driver"),
            std::string::npos)
      << compiled.status().message();
}

TEST_F(CudaPrograms, a_device_that_is_full_is_the_reason_until_there_is_memory) {
  const Graph graph = parse(k_product_and_softmax);
  set("STAND_IN_MEMORY_BYTES", "20000");
  const auto refused = client_of("cuda")->compile(graph, {});
  EXPECT_EQ(refused.status().code(), StatusCode::resource_exhausted) << refused.status().to_string();
  EXPECT_EQ(refused.status().op(), "") << "with memory there is a kernel";
  stop_daemon();
  unsetenv("STAND_IN_MEMORY_BYTES");
  expect_built_then_mapped("cuda", graph);
}

TEST_F(CudaPrograms, an_index_out_of_range_is_told_by_the_queue_and_the_device_goes_on) {
  const Graph graph = parse(k_lookup);
  const auto client = client_of("cuda");
  const auto compiled = client->compile(graph, {});
  ASSERT_TRUE(compiled.ok()) << compiled.status().to_string();
  EXPECT_TRUE(compiled->program->checks_indices());
  DeviceStream& stream = *client->stream();
  testing::OnDevice table(stream, 10 * 33 * 4), indices(stream, 7 * 8), sums(stream, 7 * 4);
  const std::vector<float> ones(330, 1);
  table.upload(ones.data());
  const void* inputs[] = {table.get(), indices.get()};
  void* outputs[] = {sums.get()};
  for (const int64_t last : {9, 10, 0}) {
    const std::vector<int64_t> rows{1, 2, 3, 4, 5, 6, last};
    indices.upload(rows.data());
    const Status ran = compiled->program->run(inputs, outputs, 1);
    EXPECT_EQ(ran.code(), last < 10 ? StatusCode::ok : StatusCode::out_of_range) << ran.to_string();
  }
  EXPECT_EQ(sums.download(), std::vector<float>(7, 33));
}

/// A stream of the driver that the backend under test has opened, and what a framework would do with it.
class FrameworkStream {
 public:
  FrameworkStream() {
    call<int (*)(int*, int)>("cuDeviceGet")(&m_device, 0);
    call<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&m_context, m_device);
    call<int (*)(void*)>("cuCtxPushCurrent_v2")(m_context);
    call<int (*)(void**, unsigned)>("cuStreamCreate")(&m_stream, 0);
  }
  ~FrameworkStream() {
    call<int (*)(void*)>("cuStreamDestroy_v2")(m_stream);
    call<int (*)(void**)>("cuCtxPopCurrent_v2")(&m_context);
  }
  void* get() const { return m_stream; }
  int begin_capture() { return call<int (*)(void*, int)>("cuStreamBeginCapture_v2")(m_stream, 0); }
  int end_capture() {
    void* graph = nullptr;
    const int ended = call<int (*)(void*, void**)>("cuStreamEndCapture")(m_stream, &graph);
    return ended != 0
               ? ended
               : call<int (*)(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(&m_graph, graph, 0);
  }
  int launch_graph() { return call<int (*)(void*, void*)>("cuGraphLaunch")(m_graph, m_stream); }
  int synchronise() { return call<int (*)(void*)>("cuStreamSynchronize")(m_stream); }

 private:
  template <typename Function>
  static Function call(const char* name) {
    static void* const library = dlopen(STAND_IN_DRIVER "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Function>(dlsym(library, name));
  }

  int m_device = 0;
  void *m_context = nullptr, *m_stream = nullptr, *m_graph = nullptr;
};

// Each line needs the one before it in memory: three launches and more.
constexpr const char* k_chain = R"(graph(%x: f32[16, 64], %w: f32[64, 64]) {
  %a = matmul(%x, %w)
  %b = softmax(%a) {dim = 1}
  %c = matmul(%b, %w)
  %y = softmax(%c) {dim = 0}
  return %y
}
)";

/// A program's inputs and results on the device, for calls of a framework's.
class Called {
 public:
  Called(Client& client, const Graph& graph) : m_client(client), m_graph(graph) {
    auto compiled = client.compile(m_graph, {});
    EXPECT_TRUE(compiled.ok()) << compiled.status().to_string();
    m_program = compiled->program;
    m_call.emplace(m_program);
    for (const Tensor& input : testing::inputs_of(m_graph)) {
      m_inputs.emplace_back(*client.stream(), input.bytes.size()).upload(input.bytes.data());
      m_input_pointers.push_back(m_inputs.back().get());
    }
    m_scratch = std::move(*DeviceMemory::allocate(client.stream()->device(), m_program->launch_scratch_bytes()));
    m_expected = (*evaluate_exact(m_graph, testing::inputs_of(m_graph)))[0];
    m_output.emplace(*client.stream(), m_expected.size() * sizeof(float));
  }

  Status call(void* queue) { return call(queue, *m_output); }
  Status call(void* queue, testing::OnDevice& output) {
    void* outputs[] = {output.get()};
    return m_call->run(m_client, queue, m_input_pointers, outputs, m_scratch.get());
  }
  void forget_result() { m_output->upload(std::vector<float>(m_expected.size(), NAN).data()); }
  void expect_result() {
    const std::vector<float> got = m_output->download();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], m_expected[i], 1e-5) << i;
  }
  testing::OnDevice& input(size_t index) { return m_inputs[index]; }
  Recordings::Counts recordings() const { return m_program->recordings(); }
  const Program& program() const { return *m_program; }
  testing::OnDevice another_output() { return {*m_client.stream(), m_expected.size() * sizeof(float)}; }

 private:
  Client& m_client;
  const Graph m_graph;
  std::shared_ptr<const Program> m_program;
  std::optional<FrameworkCall> m_call;
  std::deque<testing::OnDevice> m_inputs;
  std::vector<const void*> m_input_pointers;
  DeviceMemory m_scratch;
  std::vector<double> m_expected;
  std::optional<testing::OnDevice> m_output;
};

TEST_F(CudaPrograms, a_program_that_meets_memory_again_is_one_launch) {
  const auto client = client_of("cuda");
  Called called(*client, parse(k_chain));
  ASSERT_GE(called.program().launch_names().size(), 3u);
  FrameworkStream stream;
  for (int step = 0; step < 4; ++step) {
    called.forget_result();
    ASSERT_TRUE(called.call(stream.get()).ok());
    ASSERT_EQ(stream.synchronise(), 0);
    called.expect_result();
  }
  EXPECT_EQ(called.recordings().made, 1u) << called.recordings().refusal;
  EXPECT_EQ(called.recordings().replayed, 3u);
  testing::OnDevice other = called.another_output();
  ASSERT_TRUE(called.call(stream.get(), other).ok());
  ASSERT_EQ(stream.synchronise(), 0);
  EXPECT_EQ(called.recordings().made, 1u) << "memory that is new";
  called.expect_result();
}

TEST_F(CudaPrograms, recordings_can_be_turned_off) {
  set("KILN_DEVICE_RECORDINGS", "false");
  const auto client = client_of("cuda");
  Called called(*client, parse(k_chain));
  FrameworkStream stream;
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(called.call(stream.get()).ok());
  ASSERT_EQ(stream.synchronise(), 0);
  called.expect_result();
  EXPECT_EQ(called.recordings().made, 0u);
}

TEST_F(CudaPrograms, a_program_runs_inside_a_graph_that_the_framework_captures) {
  const auto client = client_of("cuda");
  Called chain(*client, parse(k_chain)), lookup(*client, parse(k_lookup));
  const std::vector<int64_t> rows{1, 2, 3, 4, 5, 6, 9};
  lookup.input(1).upload(rows.data());
  FrameworkStream stream;
  ASSERT_EQ(stream.begin_capture(), 0);
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(chain.call(stream.get()).ok());
    const Status called = lookup.call(stream.get());
    ASSERT_TRUE(called.ok()) << "neither waits nor allocates: " << called.to_string();
  }
  ASSERT_EQ(stream.end_capture(), 0);
  chain.forget_result();
  ASSERT_EQ(stream.launch_graph(), 0);
  ASSERT_EQ(stream.synchronise(), 0);
  chain.expect_result();
  EXPECT_EQ(chain.recordings().made, 0u);
}

TEST_F(CudaPrograms, an_index_out_of_range_is_an_error_of_the_first_call_and_an_assertion_of_the_device_later) {
  const auto client = client_of("cuda");
  Called lookup(*client, parse(k_lookup));
  FrameworkStream stream;
  const auto call_with_last = [&](int64_t last) {
    const std::vector<int64_t> rows{1, 2, 3, 4, 5, 6, last};
    lookup.input(1).upload(rows.data());
    return lookup.call(stream.get());
  };
  EXPECT_EQ(call_with_last(10).code(), StatusCode::out_of_range);
  EXPECT_TRUE(call_with_last(9).ok());
  EXPECT_EQ(stream.synchronise(), 0);
  const auto lose_the_device = [&] {
    const bool waited = !call_with_last(10).ok();
    std::_Exit(waited ? 2 : stream.synchronise() == 0 ? 1 : 0);
  };
  EXPECT_EXIT(lose_the_device(), ::testing::ExitedWithCode(0), "assertion failed: an index is in range");
}

TEST_F(CudaPrograms, each_index_out_of_range_is_an_error_where_it_is_to_be_reported) {
  set("KILN_DEVICE_INDEX_ERRORS", "report");
  const auto client = client_of("cuda");
  Called lookup(*client, parse(k_lookup));
  FrameworkStream stream;
  for (const int64_t last : {9, 10, 0, -11}) {
    const std::vector<int64_t> rows{1, 2, 3, 4, 5, 6, last};
    lookup.input(1).upload(rows.data());
    EXPECT_EQ(lookup.call(stream.get()).ok(), last == 9 || last == 0) << last;
  }
  EXPECT_EQ(stream.synchronise(), 0);
}

}  // namespace
}  // namespace kiln
