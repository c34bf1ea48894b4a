#include "backends/cpu/features.h"

#include <gtest/gtest.h>
#include <seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

TEST(Features, the_system_is_asked_for_tiles_once_where_there_are_any) {
  const uint64_t tiles = find_target("x86-64-v4-amx")->features, rest = find_target("x86-64-v4-bf16")->features;
  int asked = 0;
  const auto answer = [&](bool yes) { return [&asked, yes] { return ++asked, yes; }; };
  EXPECT_EQ(permitted(rest, answer(true)), rest);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(permitted(tiles, answer(true)), tiles);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(permitted(tiles, answer(false)), rest);
  EXPECT_EQ(permitted(rest | bit(Feature::amx_int8), answer(true)), rest) << "no use without registers";
}

/// Ends the process: with 0 where it may not use tiles, takes no target that has them, and says so of code that does.
[[noreturn]] void exit_without_tiles() {
  constexpr long k_request_permission = 0x1023, k_tile_data = 18;
  const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
  const bool is_closed = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(arch_prctl), 1,
                                          SCMP_A0(SCMP_CMP_EQ, k_request_permission)) == 0 &&
                         seccomp_load(filter) == 0 &&
                         syscall(SYS_arch_prctl, k_request_permission, k_tile_data) == -1 && errno == EPERM;
  const CpuTarget& tiles = *find_target("x86-64-v4-amx");
  const bool is_chosen =
      std::ranges::any_of(host_targets(), [&](const Target& each) { return each.name == tiles.name; });
  Image image;
  image.features = tiles.features;
  const Status refused = load_image(image, {}).status();
  const bool is_said =
      refused.code() == StatusCode::failed_precondition && refused.message().find("amx_tile") != std::string::npos;
  std::_Exit(is_closed && !is_chosen && is_said ? 0 : 1);
}

TEST(Features, a_process_that_may_not_use_tiles_neither_chooses_nor_runs_code_that_does) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // another process, which has not asked yet
  EXPECT_EXIT(exit_without_tiles(), testing::ExitedWithCode(0), "");
}

TEST(Features, the_compiler_offers_every_target_whatever_the_host) {
  EXPECT_EQ(CpuCompileBackend().targets().size(), ladder().size());
}

}  // namespace
}  // namespace kiln::cpu
