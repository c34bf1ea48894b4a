// How strong is the verdict at the sizes that models have? Kernels of these sizes are generated with one fault each, in
// one place of a grid of thousands of tiles, and judged as candidates are. KILN_MUTANTS=N draws N of each kind and kernel.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <random>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/features.h"
#include "frontend/autodiff/gradient.h"
#include "frontend/infer/builder.h"
#include "jit/build/kernels/launch_reference.h"
#include "jit/build/kernels/output_demand.h"
#include "jit/worker/process_runner.h"
#include "tests/verdict/mutants/local_faults.h"

namespace kiln::mutants {
namespace {

constexpr size_t k_kinds = static_cast<size_t>(LocalFault::count);
constexpr uint32_t k_timeout_ms = 60'000;

size_t draws() {
  const char* wanted = std::getenv("KILN_MUTANTS");
  return wanted != nullptr ? std::strtoul(wanted, nullptr, 10) : 3;
}

struct Draft {
  Graph graph;
  GraphBuilder b{graph};
  ValueId in(Shape shape) { return graph.add_input({DType::f32, std::move(shape), {}}); }
  std::vector<ValueId> attention(Shape queries, Shape keys, bool causal) {
    const std::vector<ValueId> operands{in(queries), in(keys), in(keys), k_none};
    return {b.ops("attention", operands, {{"causal", causal}, {"scale", 0.125}})[0]};
  }
};

struct Row {
  const char* name;
  std::vector<ValueId> (*outputs)(Draft&);
};

constexpr Row k_rows[] = {
    {"512x3072x768, bias and gelu",
     [](Draft& d) {
       const ValueId sum = d.b.op("addmm", {d.in({3'072}), d.in({512, 768}), d.in({768, 3'072})});
       return std::vector{d.b.op("gelu", {sum}, {{"approximate", std::string("tanh")}})};
     }},
    {"512x768x3072, transposed",
     [](Draft& d) { return std::vector{d.b.matmul(d.in({512, 3'072}), d.b.transpose(d.in({768, 3'072})))}; }},
    {"32x1024x11008",
     [](Draft& d) { return std::vector{d.b.matmul(d.in({32, 11'008}), d.b.transpose(d.in({1'024, 11'008})))}; }},
    {"decode 1x3072x768", [](Draft& d) { return std::vector{d.b.matmul(d.in({1, 768}), d.in({768, 3'072}))}; }},
    {"attention 1024x1024", [](Draft& d) { return d.attention({1, 2, 1'024, 64}, {1, 2, 1'024, 64}, false); }},
    {"attention 1024x1024, causal", [](Draft& d) { return d.attention({1, 2, 1'024, 64}, {1, 2, 1'024, 64}, true); }},
    {"decode, 1024 keys", [](Draft& d) { return d.attention({1, 12, 1, 64}, {1, 12, 1'024, 64}, false); }},
    {"softmax 512x1024",
     [](Draft& d) { return std::vector{d.b.op("softmax", {d.in({512, 1'024})}, {{"dim", int64_t{1}}})}; }},
};

struct Tally {
  size_t rejected = 0, passed = 0;
};

class RealSizeMutantsTest : public testing::Test {
 protected:
  RealSizeMutantsTest() {
    for (const cpu::CpuTarget& each : cpu::ladder()) {
      if (m_target.name.empty() && (each.features & ~cpu::host_features()) == 0)
        m_target = {"cpu", std::string(each.name)};
    }
  }

  void examine(const std::string& name, const Plan& plan, const Launch& launch, CandidateRunner& runner);
  void print() const;

  cpu::CpuCompileBackend m_backend;
  Target m_target;
  std::mt19937_64 m_random{1};
  std::array<Tally, k_kinds> m_tallies;
  std::vector<std::string> m_survivors;
};

void RealSizeMutantsTest::examine(const std::string& name, const Plan& plan, const Launch& launch,
                                  CandidateRunner& runner) {
  const KernelSpec& spec = plan.specs[launch.spec];
  auto trial = CandidateTrial::prepare(spec, runner);
  ASSERT_TRUE(trial.ok()) << trial.status().to_string();
  auto reference = LaunchReference::create(plan, launch, *trial);
  ASSERT_TRUE(reference.ok()) << reference.status().to_string();
  const Schedule schedule = default_candidates(m_backend, spec, m_target).front();
  reference->aim_at({&schedule, 1});

  const auto right = m_backend.compile(spec, schedule, m_target);
  ASSERT_TRUE(right.ok()) << name << ": " << right.status().to_string();
  const Verdict verdict = trial->judge(*right, reference->outputs(), k_timeout_ms);
  EXPECT_TRUE(verdict.status.ok()) << name << ": " << verdict.status.to_string();
  EXPECT_EQ(verdict.tiles_met, verdict.tiles) << name;

  const std::vector<int64_t> tile = smallest_tile(spec, {&schedule, 1});
  for (size_t kind = 0; kind < k_kinds; ++kind) {
    for (size_t draw = 0; draw < draws(); ++draw) {
      for (const FaultyKernel& faulty : with_fault(spec, tile, static_cast<LocalFault>(kind), m_random)) {
        const auto image =
            m_backend.compile(faulty.spec, default_candidates(m_backend, faulty.spec, m_target).front(), m_target);
        if (!image.ok()) continue;
        const bool passed = trial->judge(*image, reference->outputs(), k_timeout_ms).status.ok();
        ++(passed ? m_tallies[kind].passed : m_tallies[kind].rejected);
        if (passed) {
          m_survivors.push_back(fmt::format("{}: {}: {}", name, to_string(static_cast<LocalFault>(kind)), faulty.what));
        }
      }
    }
  }
}

void RealSizeMutantsTest::print() const {
  std::printf("%-22s %9s %7s\n", "kind", "rejected", "passed");
  for (size_t kind = 0; kind < k_kinds; ++kind) {
    std::printf("%-22s %9zu %7zu\n", to_string(static_cast<LocalFault>(kind)), m_tallies[kind].rejected,
                m_tallies[kind].passed);
  }
  for (const std::string& survivor : m_survivors) std::printf("passed: %s\n", survivor.c_str());
}

TEST_F(RealSizeMutantsTest, AFaultInOnePlaceOfALargeGridIsSeen) {
  auto runner = ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH});
  ASSERT_TRUE(runner.ok()) << runner.status().to_string();
  for (const Row& row : k_rows) {
    const auto start = std::chrono::steady_clock::now();
    Draft draft;
    draft.graph.set_outputs(row.outputs(draft));
    ASSERT_TRUE(draft.b.status().ok()) << row.name << ": " << draft.b.status().to_string();
    const auto plan = fuse(draft.graph);
    ASSERT_TRUE(plan.ok()) << row.name << ": " << plan.status().to_string();
    for (const Launch& launch : plan->launches) examine(row.name, *plan, launch, **runner);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%-30s %.1f s\n", row.name, took.count());
  }
  print();
  size_t rejected = 0, passed = 0;
  for (const Tally& tally : m_tallies) {
    EXPECT_GT(tally.rejected, 0U);
    rejected += tally.rejected, passed += tally.passed;
  }
  std::printf("%zu wrong kernels, %zu rejected (%.2f %%)\n", rejected + passed, rejected,
              100.0 * static_cast<double>(rejected) / static_cast<double>(rejected + passed));
  EXPECT_GE(static_cast<double>(rejected), 0.99 * static_cast<double>(rejected + passed));
}

}  // namespace
}  // namespace kiln::mutants
