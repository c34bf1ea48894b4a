#include "jit/build/build.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/features.h"
#include "frontend/infer/builder.h"
#include "frontend/wire/wire.h"
#include "jit/run/program_generated.h"
#include "tests/cache/cache_testing.h"
#include "tests/jit/build/publish.h"

namespace kiln {
namespace {

const CompileBackend* only_the_host(std::string_view name) {
  static const cpu::CpuCompileBackend backend;
  return name == backend.name() ? &backend : nullptr;
}

/// Builds graphs without a device, so that verdicts are deferred, and keeps what comes of it in a cache.
class BuildTest : public ::testing::Test {
 protected:
  Expected<BuildResult> build_again(const Graph& graph) {
    const Target target{"cpu", std::string(cpu::ladder().front().name), {}};
    const BuildEnvironment environment{.make_runner = [](const Target&) {
      return Expected<std::unique_ptr<CandidateRunner>>(error(StatusCode::not_found, "none"));
    }};
    return build({to_wire(graph), {target}, m_directory.path()}, only_the_host, environment);
  }
  void publish(const PublishBatch& batch) {
    ASSERT_TRUE(m_store->publish(batch).ok());
    ASSERT_TRUE(m_store->flush().ok());
  }

  testing::TemporaryDirectory m_directory;
  std::unique_ptr<CacheStore> m_store = std::move(CacheStore::open({.directory = m_directory.path()})).value();
};

/// Two regions' worth of kernels: a product and what follows it.
Graph some_graph() {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = graph.add_input({DType::f32, {Dim(8), Dim(16)}, {}});
  const ValueId w = graph.add_input({DType::f32, {Dim(16), Dim(4)}, {}});
  const ValueId product = builder.op("matmul", {x, w});
  graph.set_outputs({builder.op("softmax", {product}, {{"dim", int64_t{1}}})});
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  return graph;
}

const BuiltHead& head_of(const BuildResult& result, std::string_view level) {
  const auto found = std::ranges::find_if(result.heads, [&](const BuiltHead& head) {
    return head.key_parts.find(fmt::format("\"level\":\"{}\"", level)) != std::string::npos;
  });
  EXPECT_NE(found, result.heads.end()) << "no head of a " << level;
  return *found;
}

bool names(const BuildResult& result, const Digest& plan, const Digest& code) {
  const auto artifact = std::ranges::find(result.artifacts, plan, &BuiltArtifact::digest);
  if (artifact == result.artifacts.end()) return false;
  const auto* codes = flatbuffers::GetRoot<fb::Plan>(artifact->payload.data())->codes();
  return std::ranges::any_of(*codes, [&](const fb::ArtifactDigest* each) {
    return std::equal(code.bytes.begin(), code.bytes.end(), each->bytes()->data());
  });
}

TEST_F(BuildTest, what_is_kept_is_not_built_again) {
  const auto first = build_again(some_graph());
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_GT(first->compilations, 0);
  publish(batch_of(*first));

  const auto second = build_again(some_graph());
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_EQ(second->compilations, 0);
  ASSERT_EQ(second->heads.size(), 1);
  EXPECT_EQ(second->heads.front().artifact, head_of(*first, "program").artifact);
}

TEST_F(BuildTest, a_later_kernel_reaches_plan_and_program) {
  const auto first = build_again(some_graph());
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  publish(batch_of(*first));
  const BuiltHead& code = head_of(*first, "code");
  EXPECT_EQ(head_of(*first, "plan").generation, 0);

  auto tuned = *std::ranges::find(first->artifacts, code.artifact, &BuiltArtifact::digest);
  tuned.payload.push_back(0x90);
  const Image image{tuned.payload, tuned.entry, tuned.tasks, tuned.workspace_bytes, tuned.features};
  BuildResult winner;
  winner.artifacts.push_back(code_artifact(image, tuned.backend));
  const Digest winning = winner.artifacts.front().digest;
  winner.heads.push_back({code.key, winning, 3, code.key_parts});
  publish(batch_of(winner));

  const auto second = build_again(some_graph());
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_EQ(second->compilations, 0);
  EXPECT_EQ(head_of(*second, "plan").generation, 3);
  EXPECT_TRUE(names(*second, head_of(*second, "plan").artifact, winning));
  EXPECT_FALSE(names(*second, head_of(*second, "plan").artifact, code.artifact));
  EXPECT_EQ(head_of(*second, "program").generation, 3);
  EXPECT_NE(head_of(*second, "program").artifact, head_of(*first, "program").artifact);
  publish(batch_of(*second));
}

TEST_F(BuildTest, a_backend_that_is_not_there_is_named) {
  const auto built = build({to_wire(some_graph()), {{"abacus", "beads", {}}}, {}}, only_the_host, {});
  EXPECT_EQ(built.status().code(), StatusCode::unimplemented);
  EXPECT_NE(built.status().message().find("abacus"), std::string::npos);
}

}  // namespace
}  // namespace kiln
