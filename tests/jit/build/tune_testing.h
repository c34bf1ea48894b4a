#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autotune/record.h"
#include "backends/cpu/compile/backend.h"
#include "backends/cpu/compile/gemm/outer_product.h"
#include "backends/devices.h"
#include "backends/schedule_bytes.h"
#include "frontend/infer/builder.h"
#include "frontend/wire/wire.h"
#include "jit/build/build.h"
#include "jit/run/program_generated.h"
#include "jit/worker/process_runner.h"
#include "tests/cache/cache_testing.h"
#include "tests/jit/build/other_candidates.h"
#include "tests/jit/build/publish.h"

namespace kiln {

inline const CompileBackend* only_the_host(std::string_view name) {
  static const cpu::CpuCompileBackend backend;
  return name == backend.name() ? &backend : nullptr;
}

/// Right, and in no list of the model's.
inline Schedule unlisted() {
  return {encode_choices(cpu::OuterProductSchedule{.tile_rows = 3, .tile_vectors = 2, .k_block = 7}), "unlisted"};
}

/// Nothing but an unlisted schedule for products of 48 columns.
inline const CompileBackend* narrow_by_one_way(std::string_view name) {
  static const OtherCandidates backend([](const GemmSpec& gemm, std::vector<Schedule>& schedules) {
    if (gemm.n == 48) schedules = {unlisted()};
  });
  return name == backend.name() ? &backend : nullptr;
}

inline Graph product_of(int64_t m, int64_t n, int64_t k) {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = graph.add_input({DType::f32, {Dim(m), Dim(k)}, {}});
  const ValueId w = graph.add_input({DType::f32, {Dim(k), Dim(n)}, {}});
  graph.set_outputs({builder.op("matmul", {x, w})});
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  return graph;
}

#ifdef KILN_IS_SANITIZED
inline constexpr bool k_is_slowed = true;
#else
inline constexpr bool k_is_slowed = false;
#endif

/// A product whose candidates differ, and a loop that does not race.
inline Graph product_and_loop() {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = graph.add_input({DType::f32, {Dim(96), Dim(160)}, {}});
  const ValueId w = graph.add_input({DType::f32, {Dim(160), Dim(128)}, {}});
  graph.set_outputs({builder.op("softmax", {builder.op("matmul", {x, w})}, {{"dim", int64_t{1}}})});
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  return graph;
}

/// A product with a function behind it that may have a kernel of its own.
inline Graph product_and_gelu() {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = graph.add_input({DType::f32, {Dim(150), Dim(200)}, {}});
  const ValueId w = graph.add_input({DType::f32, {Dim(200), Dim(260)}, {}});
  graph.set_outputs({builder.op("gelu", {builder.op("matmul", {x, w})})});
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  return graph;
}

/// Builds on this host, whose candidates race, and a cache that keeps what comes of them.
class TuneTest : public ::testing::Test {
 protected:
  Expected<BuildResult> build_it(Tuning tuning, const Graph& graph = product_and_loop(),
                                 const BackendFinder& find_backend = only_the_host) {
    Target target = open_device({}).value().targets.front();
    target.is_deterministic = m_is_deterministic;
    target.threads = m_threads;
    return build({to_wire(graph), {target}, m_cache, tuning}, find_backend, environment());
  }
  BuildEnvironment environment() const {
    return {.make_runner =
                [](const Target& target) {
                  return ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH, .timed_threads = target.threads});
                },
            .keep = m_keep,
            .program_verdict_max_bytes = m_program_verdict_max_bytes,
            .supply = m_supply};
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
  static std::vector<TuningRecord> records_in(const BuildResult& result) {
    std::vector<TuningRecord> records;
    for (const BuiltHead& head : heads_of(result, "tuning")) {
      const std::vector<uint8_t>& json = artifact_of(result, head).payload;
      records.push_back(TuningRecord::parse({reinterpret_cast<const char*>(json.data()), json.size()}).value());
    }
    return records;
  }
  static Expected<TuningRecord> record_in(const BuildResult& result) {
    auto records = records_in(result);
    if (records.size() != 1) return error(StatusCode::internal, "{} records", records.size());
    return std::move(records.front());
  }
  /// The candidates of a record that came from another kernel's race.
  static std::vector<TuningRecord::Candidate> from_others(const TuningRecord& record) {
    std::vector<TuningRecord::Candidate> found = record.candidates;
    std::erase_if(found, [](const TuningRecord::Candidate& each) { return each.origin.empty(); });
    return found;
  }
  /// What races for `graph` once the unlisted schedule has won a race of 40 x 48 x 72, whose record `edit` may change.
  std::vector<TuningRecord::Candidate> from_others_after_a_narrow_race(
      const Graph& graph, const std::function<void(std::string&)>& edit = [](std::string&) {}) {
    auto first = build_it(Tuning::all, product_of(40, 48, 72), narrow_by_one_way).value();
    const Digest before = heads_of(first, "near").at(0).artifact;
    BuiltArtifact& record = *std::ranges::find(first.artifacts, before, &BuiltArtifact::digest);
    std::string json(record.payload.begin(), record.payload.end());
    edit(json);
    record = named_artifact(ArtifactKind::record, {}, {json.begin(), json.end()});
    for (BuiltHead& head : first.heads) {
      if (head.artifact == before) head.artifact = record.digest;
    }
    publish(first);
    return from_others(record_in(build_it(Tuning::all, graph).value()).value());
  }
  static bool is_tuned(const BuildResult& result) {
    const BuiltArtifact& program = artifact_of(result, heads_of(result, "program").front());
    return flatbuffers::GetRoot<fb::Program>(program.payload.data())->is_tuned();
  }

  bool m_is_deterministic = false;
  uint32_t m_threads = 0;  // of the target
  testing::TemporaryDirectory m_directory;
  std::string m_cache = m_directory.path();  // which builds read
  CodeSupply* m_supply = nullptr;
  ResultKeeper m_keep = [](const BuildResult&) {};
  uint64_t m_program_verdict_max_bytes = limits::k_program_verdict_bytes;
  std::unique_ptr<CacheStore> m_store = std::move(CacheStore::open({.directory = m_directory.path()})).value();
};

}  // namespace kiln
