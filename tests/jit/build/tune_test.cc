// A build that races: winners are verified, recorded and linked, and what has raced does not race again.

#include <gtest/gtest.h>

#include <algorithm>

#include "autotune/record.h"
#include "backends/cpu/compile/backend.h"
#include "backends/devices.h"
#include "frontend/infer/builder.h"
#include "frontend/wire/wire.h"
#include "jit/build/build.h"
#include "jit/run/program_generated.h"
#include "jit/worker/process_runner.h"
#include "tests/cache/cache_testing.h"
#include "tests/jit/build/publish.h"

namespace kiln {
namespace {

const CompileBackend* only_the_host(std::string_view name) {
  static const cpu::CpuCompileBackend backend;
  return name == backend.name() ? &backend : nullptr;
}

/// A product whose candidates differ, and a loop that does not race.
Graph product_and_loop() {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = graph.add_input({DType::f32, {Dim(96), Dim(160)}, {}});
  const ValueId w = graph.add_input({DType::f32, {Dim(160), Dim(128)}, {}});
  graph.set_outputs({builder.op("softmax", {builder.op("matmul", {x, w})}, {{"dim", int64_t{1}}})});
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  return graph;
}

class TuneTest : public ::testing::Test {
 protected:
  Expected<BuildResult> build_it(bool tune) {
    const BuildEnvironment environment{
        .make_runner = [](const Target&) { return ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH}); }};
    const Target target = open_device({}).value().targets.front();
    return build({to_wire(product_and_loop()), {target}, m_directory.path(), tune}, only_the_host, environment);
  }
  void publish(const BuildResult& result) {
    ASSERT_TRUE(m_store->publish(batch_of(result)).ok());
    ASSERT_TRUE(m_store->flush().ok());
  }
  static std::vector<BuiltHead> heads_of(const BuildResult& result, std::string_view level) {
    std::vector<BuiltHead> heads;
    for (const BuiltHead& head : result.heads) {
      if (head.key_parts.find(fmt::format("\"level\":\"{}\"", level)) != std::string::npos) heads.push_back(head);
    }
    return heads;
  }
  static const BuiltArtifact& artifact_of(const BuildResult& result, const BuiltHead& head) {
    return *std::ranges::find(result.artifacts, head.artifact, &BuiltArtifact::digest);
  }
  static bool is_tuned(const BuildResult& result) {
    const BuiltArtifact& program = artifact_of(result, heads_of(result, "program").front());
    return flatbuffers::GetRoot<fb::Program>(program.payload.data())->is_tuned();
  }

  testing::TemporaryDirectory m_directory;
  std::unique_ptr<CacheStore> m_store = std::move(CacheStore::open({.directory = m_directory.path()})).value();
};

TEST_F(TuneTest, a_race_gives_a_later_generation_and_a_record) {
  const auto first = build_it(false);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_FALSE(is_tuned(*first));
  EXPECT_TRUE(heads_of(*first, "tuning").empty());
  publish(*first);

  const auto tuned = build_it(true);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  EXPECT_TRUE(is_tuned(*tuned));
  ASSERT_EQ(heads_of(*tuned, "code").size(), 1) << "the loop does not race";
  EXPECT_EQ(heads_of(*tuned, "code").front().generation, 1);
  EXPECT_EQ(heads_of(*tuned, "program").front().generation, 1);
  ASSERT_EQ(heads_of(*tuned, "tuning").size(), 1);
  const std::vector<uint8_t>& json = artifact_of(*tuned, heads_of(*tuned, "tuning").front()).payload;
  const auto record = TuningRecord::parse({reinterpret_cast<const char*>(json.data()), json.size()});
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_GT(record->candidates.size(), 1);
  EXPECT_FALSE(record->candidates.front().seconds.empty());
  EXPECT_FALSE(record->machine.empty());
  publish(*tuned);

  const auto again = build_it(true);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->compilations, 0);
  EXPECT_TRUE(heads_of(*again, "tuning").empty());
  EXPECT_EQ(heads_of(*again, "program").front().artifact, heads_of(*tuned, "program").front().artifact);
}

TEST_F(TuneTest, the_first_build_may_race_at_once) {
  const auto tuned = build_it(true);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  EXPECT_TRUE(is_tuned(*tuned));
  publish(*tuned);
}

}  // namespace
}  // namespace kiln
