// Code that strangers supply, judged for real: what is right is a compilation saved, whatever else it is is made here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "backends/cpu/compile/backend.h"
#include "backends/devices.h"
#include "base/limits.h"
#include "frontend/infer/builder.h"
#include "frontend/wire/wire.h"
#include "jit/build/build.h"
#include "jit/worker/process_runner.h"
#include "tests/cache/cache_testing.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

const CompileBackend* only_the_host(std::string_view name) {
  static const cpu::CpuCompileBackend backend;
  return name == backend.name() ? &backend : nullptr;
}

/// What a store has that anybody may have written to.
class StrangersSupply final : public CodeSupply {
 public:
  Expected<CodeAnswer> ask(std::span<const Digest> keys, bool /*waits*/, bool judges) override {
    has_judge = judges;
    CodeAnswer answer;
    for (const Digest& key : keys) {
      const auto found = std::ranges::find(code, key, &SuppliedCode::key);
      if (found != code.end()) answer.found.push_back(*found);
    }
    return answer;
  }
  Expected<std::vector<SuppliedEntry>> find(std::span<const Digest> keys, ArtifactKind kind, bool raced) override {
    std::vector<SuppliedEntry> found;
    if (kind != ArtifactKind::code || raced) return found;
    for (const SuppliedEntry& each : deferred) {
      if (std::ranges::find(keys, each.key) != keys.end()) found.push_back(each);
    }
    return found;
  }
  Status give(std::vector<SuppliedCode> those) override {
    std::ranges::move(those, std::back_inserter(made));
    return {};
  }

  std::vector<SuppliedCode> code, made;
  std::vector<SuppliedEntry> deferred;
  bool has_judge = false;
};

/// Products of different sizes, each with a kernel of its own.
Graph products(int64_t count) {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = graph.add_input({DType::f32, {Dim(24), Dim(40)}, {}});
  std::vector<ValueId> outputs;
  for (int64_t i = 0; i < count; ++i) {
    const ValueId w = graph.add_input({DType::f32, {Dim(40), Dim(16 * (i + 1))}, {}});
    outputs.push_back(builder.op("matmul", {x, w}));
  }
  graph.set_outputs(outputs);
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  return graph;
}

/// Of two tensors.
Graph pointwise(std::string_view op) {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = graph.add_input({DType::f32, {Dim(30), Dim(50)}, {}});
  const ValueId y = graph.add_input({DType::f32, {Dim(30), Dim(50)}, {}});
  graph.set_outputs({builder.op(op, {x, y})});
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  return graph;
}

class SuppliedCandidatesTest : public ::testing::Test {
 protected:
  BuildResult build_it(const Graph& graph, CodeSupply* supply = nullptr, bool has_device = true) const {
    Target target = open_device({}).value().targets.front();
    target.is_deterministic = m_is_deterministic;
    const RunnerFactory make_runner = [&](const Target&) -> Expected<std::unique_ptr<CandidateRunner>> {
      if (!has_device) return error(StatusCode::not_found, "none");
      return ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH});
    };
    auto built = build({to_wire(graph), {target}, m_directory.path()}, only_the_host,
                       {.make_runner = make_runner, .supply = supply});
    EXPECT_TRUE(built.ok()) << built.status().to_string();
    return built.ok() ? std::move(*built) : BuildResult{};
  }

  /// The code of a build, as strangers would bring it.
  static std::vector<SuppliedCode> candidates_in(const BuildResult& built) {
    std::vector<SuppliedCode> candidates;
    for (const BuiltHead& head : built.heads) {
      const auto artifact = std::ranges::find(built.artifacts, head.artifact, &BuiltArtifact::digest);
      if (artifact->kind != KILN_ARTIFACT_CODE) continue;
      candidates.push_back({head.key, 0, *artifact, head.key_parts, /*is_proven=*/false});
    }
    return candidates;
  }

  static Digest program_of(const BuildResult& built) { return built.heads.back().artifact; }

  bool m_is_deterministic = false;
  testing::TemporaryDirectory m_directory;  // an empty cache
};

TEST_F(SuppliedCandidatesTest, RightCodeIsCompiledByNobody) {
  const BuildResult first = build_it(products(3));
  EXPECT_EQ(first.compilations, 3U);
  StrangersSupply store;
  store.code = candidates_in(first);
  ASSERT_EQ(store.code.size(), 3U);
  const BuildResult second = build_it(products(3), &store);
  EXPECT_EQ(second.compilations, 0U);
  EXPECT_EQ(program_of(second), program_of(first));
  ASSERT_EQ(store.made.size(), 3U);
  for (const SuppliedCode& made : store.made) {
    EXPECT_EQ(made.rejected, "");
    EXPECT_FALSE(made.key_parts.empty()) << "others are given it as this build's";
  }
}

TEST_F(SuppliedCandidatesTest, CodeThatIsWrongHangsOrCrashesIsMadeHere) {
  const Graph sum = pointwise("add");
  const BuildResult first = build_it(sum);
  const SuppliedCode right = candidates_in(first).at(0);
  const BuiltArtifact of_another_key = candidates_in(build_it(pointwise("sub"))).at(0).artifact;
  const auto with_body = [&](std::vector<uint8_t> body) {
    BuiltArtifact changed = right.artifact;
    changed.payload.resize(changed.entry);
    changed.payload.insert(changed.payload.end(), body.begin(), body.end());
    return changed;
  };
  const auto with = [&](const std::function<void(BuiltArtifact&)>& change) {
    BuiltArtifact changed = right.artifact;
    change(changed);
    return changed;
  };
  const struct {
    BuiltArtifact code;
    const char* rejected;
  } candidates[] = {
      {of_another_key, ", expected "},
      {with_body({0xc3}), "was not written"},
      {with_body({0xeb, 0xfe}), "did not end"},
      {with_body({0x0f, 0x0b}), "died of signal"},
      {with_body({0xb8, 0x27, 0, 0, 0, 0x0f, 0x05, 0xc3}), "died of signal"},  // getpid()
      {with([](BuiltArtifact& code) { code.features = ~uint64_t{0}; }), "launch data"},
      {with([](BuiltArtifact& code) { code.features = 0; }), "launch data"},
      {with([](BuiltArtifact& code) { code.entry = code.payload.size(); }), "launch data"},
      {with([](BuiltArtifact& code) { code.tasks = 0; }), "launch data"},
      {with([](BuiltArtifact& code) { code.workspace_bytes = uint64_t{1} << 40; }), "launch data"},
  };
  for (const auto& [code, rejected] : candidates) {
    StrangersSupply store;
    store.code = {right};
    store.code[0].artifact = code;
    const BuildResult built = build_it(sum, &store);
    EXPECT_EQ(built.compilations, 1U) << rejected;
    EXPECT_EQ(program_of(built), program_of(first)) << rejected;
    ASSERT_EQ(store.made.size(), 1U);
    EXPECT_THAT(store.made[0].rejected, HasSubstr(rejected));
    EXPECT_EQ(store.made[0].artifact.digest, right.artifact.digest);
  }
}

TEST_F(SuppliedCandidatesTest, WhoseStoreLiesThroughoutHasFewOfItsLiesJudged) {
  constexpr int64_t k_count = 12;
  const BuildResult first = build_it(products(k_count));
  StrangersSupply store;
  store.code = candidates_in(first);
  for (SuppliedCode& each : store.code) each.artifact.payload = {0xc3};
  const BuildResult built = build_it(products(k_count), &store);
  EXPECT_EQ(built.compilations, uint64_t{k_count});
  EXPECT_EQ(program_of(built), program_of(first));
  const auto tried = std::ranges::count_if(
      store.made, [](const SuppliedCode& each) { return each.rejected.find("not tried") == std::string::npos; });
  EXPECT_GE(tried, int64_t{limits::k_rejected_candidates});
  EXPECT_LT(tried, k_count);
}

/// Bits that have to be the same everywhere, and devices that are not there: no verdict here says that the code is right. A
/// supply that brings candidates all the same is not listened to.
TEST_F(SuppliedCandidatesTest, WhatNoVerdictHereCanProveIsMadeHere) {
  for (const bool is_deterministic : {true, false}) {
    m_is_deterministic = is_deterministic;
    const bool has_device = is_deterministic;
    const BuildResult first = build_it(products(1), nullptr, has_device);
    StrangersSupply store;
    store.code = candidates_in(first);
    store.code.at(0).artifact.payload.push_back(0x90);
    const BuildResult built = build_it(products(1), &store, has_device);
    EXPECT_FALSE(store.has_judge);
    EXPECT_EQ(built.compilations, 1U);
    EXPECT_EQ(program_of(built), program_of(first));
  }
}

/// It is judged here, whoever brings it: a compilation saved where it is right, and made here where it is not.
TEST_F(SuppliedCandidatesTest, WhatWasCompiledElsewhereWithoutTheDeviceIsJudgedHere) {
  const BuildResult without_device = build_it(products(2), nullptr, /*has_device=*/false);
  StrangersSupply others;
  for (const SuppliedCode& code : candidates_in(without_device))
    others.deferred.push_back({code.key, 0, code.artifact});
  ASSERT_EQ(others.deferred.size(), 2U);
  const BuildResult right = build_it(products(2), &others);
  EXPECT_EQ(right.compilations, 0U);
  ASSERT_EQ(others.made.size(), 2U) << "what has passed is given on";

  others.deferred.at(0).artifact.payload = {0xc3};
  const BuildResult mended = build_it(products(2), &others);
  EXPECT_EQ(mended.compilations, 1U);
  EXPECT_EQ(program_of(mended), program_of(right));
}

}  // namespace
}  // namespace kiln
