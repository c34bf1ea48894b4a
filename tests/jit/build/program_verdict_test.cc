// Faults between kernels, planted in the bytes that clients would load: every one must be rejected, and what is linked
// right must pass. Each kind plants only where the graph says that it matters: a value that something reads or returns.

#include "jit/build/program_verdict/program_verdict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "frontend/ops/op.h"
#include "jit/build/program_verdict/program_script.h"
#include "jit/worker/process_runner.h"
#include "tests/jit/build/planted/faults.h"
#include "tests/jit/build/planted/linked.h"

namespace kiln::planted {
namespace {

class ProgramVerdictTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { s_subjects = subjects(); }
  static void TearDownTestSuite() { s_subjects.clear(); }
  ProgramVerdictTest() { m_runner = ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH}).value(); }

  static std::vector<std::unique_ptr<Linked>> s_subjects;
  std::unique_ptr<CandidateRunner> m_runner;
};

std::vector<std::unique_ptr<Linked>> ProgramVerdictTest::s_subjects;

TEST_F(ProgramVerdictTest, WhatIsLinkedRightPasses) {
  for (const auto& subject : s_subjects) {
    const ProgramVerdict verdict = subject->judge(subject->parts(), *m_runner);
    EXPECT_TRUE(verdict.status.ok()) << subject->name() << ": " << verdict.status.to_string();
    EXPECT_EQ(verdict.not_judged, "") << subject->name();
    EXPECT_GE(verdict.values, 5U) << subject->name();
    EXPECT_LT(verdict.max_error, 0.9) << subject->name();
  }
}

TEST_F(ProgramVerdictTest, WhatRunsInPartIsDetermined) {
  const Linked& large = *s_subjects.back();
  const ProgramVerdict verdict = large.judge(large.parts(), *m_runner);
  EXPECT_TRUE(verdict.status.ok()) << verdict.status.to_string();
  EXPECT_EQ(verdict.undetermined, 0U) << large.name();
}

TEST_F(ProgramVerdictTest, WhatRepeatsIsRunOnce) {
  for (const auto& subject : s_subjects) {
    std::set<uint32_t> met;
    uint64_t repeated = 0;
    for (const Region& region : subject->partition().regions) {
      if (!met.insert(region.class_index).second) repeated += subject->plan(region.class_index).launches.size();
    }
    const ProgramVerdict verdict = subject->judge(subject->parts(), *m_runner);
    EXPECT_LE(verdict.stood_in, repeated) << subject->name();
    if (subject != s_subjects.front()) continue;
    EXPECT_EQ(verdict.stood_in, repeated) << "all of it was judged the first time";
    EXPECT_GT(repeated, 0U);
  }
}

TEST_F(ProgramVerdictTest, WhatNeedsMoreMemoryThanThereIsIsNotJudged) {
  for (const auto& subject : s_subjects) {
    const uint64_t needed = subject->judge(subject->parts(), *m_runner).bytes;
    const ProgramVerdict verdict = subject->judge(subject->parts(), *m_runner, needed - 1);
    EXPECT_TRUE(verdict.status.ok()) << subject->name() << ": " << verdict.status.to_string();
    EXPECT_EQ(verdict.not_judged, fmt::format("it needs {} bytes, at most {}", needed, needed - 1)) << subject->name();
    EXPECT_EQ(verdict.launches, 0U) << subject->name();
    EXPECT_EQ(subject->judge(subject->parts(), *m_runner, needed).not_judged, "") << subject->name();
  }
}

TEST_F(ProgramVerdictTest, AProductThatALaterKernelReadsIsNotComputedAgain) {
  const Linked linked("product and norm", product_and_norm_gradients());
  const ProgramVerdict verdict = linked.judge(linked.parts(), *m_runner);
  EXPECT_TRUE(verdict.status.ok()) << verdict.status.to_string();
  const auto script = ProgramScript::write(linked.origin());
  ASSERT_TRUE(script.ok()) << script.status().to_string();
  size_t with_gradients = 0;
  for (const ScriptStep& step : script->steps) {
    for (const ScriptFragment& fragment : step.fragments) {
      const auto has = [&](std::string_view op) {
        return std::ranges::any_of(fragment.graph.nodes(), [&](const Node& node) { return node.op->name == op; });
      };
      if (!has("layer_norm_backward")) continue;
      ++with_gradients;
      EXPECT_FALSE(has("matmul"));
    }
  }
  EXPECT_GT(with_gradients, 0U);
}

TEST_F(ProgramVerdictTest, WhatIsBeyondAllRangeIsNotDetermined) {
  const Linked linked("gradients beyond range", gradients_beyond_range());
  const ProgramVerdict verdict = linked.judge(linked.parts(), *m_runner);
  EXPECT_TRUE(verdict.status.ok()) << verdict.status.to_string();
  EXPECT_GT(verdict.undetermined, 0U);
}

TEST_F(ProgramVerdictTest, PlantedFaultsAreRejected) {
  size_t kinds = 0;
  for (const FaultKind& kind : fault_kinds()) {
    size_t planted = 0, rejected = 0;
    for (const auto& subject : s_subjects) {
      for (const Fault& fault : kind.plant(*subject)) {
        Parts parts = subject->parts();
        fault.apply(parts);
        const ProgramVerdict verdict = subject->judge(parts, *m_runner);
        ++planted;
        rejected += verdict.status.ok() ? 0 : 1;
        EXPECT_FALSE(verdict.status.ok()) << kind.name << " in " << subject->name() << ": " << fault.what;
        EXPECT_EQ(verdict.not_judged, "") << kind.name << " in " << subject->name() << ": " << fault.what;
      }
    }
    std::printf("%-50s %3zu of %3zu rejected\n", kind.name, rejected, planted);
    EXPECT_GT(planted, 0U) << kind.name;
    ++kinds;
  }
  EXPECT_GE(kinds, 12U);
}

}  // namespace
}  // namespace kiln::planted
