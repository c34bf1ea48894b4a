// Graphs whose tensors live on the device, through the product's daemon, workers, cache and CUDA backend, fed from host
// arrays: the emulated machine is behind the names of the vendor's driver and compiler.
#include <cstdlib>
#include <fstream>

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

}  // namespace
}  // namespace kiln
