#include "backends/cpu/features.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/runtime/runtime.h"

namespace kiln::cpu {
namespace {

TEST(Features, each_step_of_the_ladder_has_all_features_of_the_steps_below) {
  for (size_t i = 1; i < ladder().size(); ++i) {
    EXPECT_EQ(ladder()[i].features & ~ladder()[i - 1].features, 0u) << ladder()[i].name;
    EXPECT_LE(ladder()[i].vector_bytes, ladder()[i - 1].vector_bytes);
  }
}

TEST(Features, targets_are_found_by_name_only_when_they_are_on_the_ladder) {
  ASSERT_NE(find_target("x86-64-v3"), nullptr);
  EXPECT_EQ(find_target("x86-64-v3")->vector_bytes, 32);
  EXPECT_EQ(find_target("native"), nullptr);
}

TEST(Features, a_masked_host_runs_the_named_target_and_those_below_only) {
  const char* mask = std::getenv("KILN_CPU_FEATURES");
  if (mask == nullptr) GTEST_SKIP() << "KILN_CPU_FEATURES is not set";
  EXPECT_EQ(host_features() & ~find_target(mask)->features, 0u);
  const std::vector<Target> targets = host_targets();
  for (const Target& target : targets) {
    EXPECT_EQ(find_target(target.name)->features & ~find_target(mask)->features, 0u);
  }
  EXPECT_FALSE(targets.empty());
}

TEST(Features, the_compiler_offers_every_target_whatever_the_host) {
  EXPECT_EQ(CpuCompileBackend().targets().size(), ladder().size());
}

}  // namespace
}  // namespace kiln::cpu
