// A build beside sources that have what raced elsewhere: winners are used, and what has raced there does not race again.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <utility>

#include "tests/jit/build/tune_testing.h"

namespace kiln {
namespace {

/// What another cache has, as builds have left it.
class KeptSupply final : public CodeSupply {
 public:
  void keep(const BuildResult& result) {
    std::ranges::copy(result.heads, std::back_inserter(m_heads));
    std::ranges::copy(result.artifacts, std::back_inserter(m_artifacts));
  }
  void lose(ArtifactKind kind) {
    std::erase_if(m_heads, [&](const BuiltHead& head) {
      const auto artifact = std::ranges::find(m_artifacts, head.artifact, &BuiltArtifact::digest);
      return artifact == m_artifacts.end() || artifact->kind == static_cast<uint16_t>(kind);
    });
  }

  Expected<CodeAnswer> ask(std::span<const Digest> keys, bool /*waits*/, bool /*judges*/) override {
    CodeAnswer answer;
    for (const Digest& key : keys) {
      find(key, [&](const BuiltHead& head, const BuiltArtifact& code) {
        answer.found.push_back({key, head.generation, code, {}});
      });
    }
    return answer;
  }
  Expected<std::vector<SuppliedEntry>> find(std::span<const Digest> keys, ArtifactKind kind, bool raced) override {
    std::vector<SuppliedEntry> entries;
    for (const Digest& key : keys) {
      find(key, [&](const BuiltHead& head, const BuiltArtifact& each) {
        const bool is_wanted = !raced || kind == ArtifactKind::record || head.generation > 0;
        if (is_wanted && each.kind == static_cast<uint16_t>(kind)) entries.push_back({key, head.generation, each});
      });
    }
    return entries;
  }
  Status give(std::vector<SuppliedCode> /*made*/) override { return {}; }

 private:
  void find(const Digest& key, const std::function<void(const BuiltHead&, const BuiltArtifact&)>& take) const {
    const BuiltHead* newest = nullptr;
    for (const BuiltHead& head : m_heads) {
      if (head.key == key && (newest == nullptr || newest->generation < head.generation)) newest = &head;
    }
    if (newest != nullptr) take(*newest, *std::ranges::find(m_artifacts, newest->artifact, &BuiltArtifact::digest));
  }

  std::vector<BuiltHead> m_heads;
  std::vector<BuiltArtifact> m_artifacts;
};

class RacedElsewhereTest : public TuneTest {};

TEST_F(RacedElsewhereTest, what_won_a_race_elsewhere_is_used_here) {
  if (k_is_slowed) GTEST_SKIP() << "what sanitizers run beside it disturbs every sample";
  KeptSupply elsewhere;
  const Graph graph = product_and_gelu();
  for (const Tuning tuning : {Tuning::off, Tuning::all}) {
    const auto built = build_it(tuning, graph, slow_when_fused);
    ASSERT_TRUE(built.ok()) << built.status().to_string();
    elsewhere.keep(*built);
    publish(*built);
  }
  const Digest program = heads_of(*build_it(Tuning::off, graph, slow_when_fused), "program").front().artifact;

  m_cache = m_directory.path("fresh");
  std::filesystem::create_directories(m_cache);
  m_supply = &elsewhere;
  const auto here = build_it(Tuning::off, graph, slow_when_fused);
  ASSERT_TRUE(here.ok()) << here.status().to_string();
  EXPECT_EQ(here->compilations, 0);
  EXPECT_TRUE(is_tuned(*here));
  EXPECT_EQ(heads_of(*here, "program").front().artifact, program);
  m_is_deterministic = true;
  const auto same = build_it(Tuning::all, graph, slow_when_fused);
  ASSERT_TRUE(same.ok()) << same.status().to_string();
  EXPECT_EQ(heads_of(*same, "code").size(), 1) << "it is as the model has it";
}

TEST_F(RacedElsewhereTest, what_has_raced_elsewhere_does_not_race_here_and_its_record_stays) {
  const Graph graph = product_and_gelu();
  KeptSupply elsewhere;
  for (const uint32_t threads : {0U, 1U}) {
    m_threads = threads;
    m_cache = m_directory.path();
    m_supply = nullptr;
    BuildResult tuned;
    for (const Tuning tuning : {Tuning::off, Tuning::all}) {
      auto built = build_it(tuning, graph);
      ASSERT_TRUE(built.ok()) << built.status().to_string();
      elsewhere.keep(*built);
      publish(*built);
      tuned = std::move(*built);
    }
    ASSERT_GE(tuned.raced, 2U) << "plans, and a product";

    for (const bool has_untuned_code : {false, true}) {
      m_cache = m_directory.path(fmt::format("fresh {} {}", threads, has_untuned_code));
      m_store = std::move(CacheStore::open({.directory = m_cache})).value();
      m_supply = nullptr;
      if (has_untuned_code) publish(build_it(Tuning::off, graph).value());
      m_supply = &elsewhere;
      const auto here = build_it(Tuning::all, graph);
      ASSERT_TRUE(here.ok()) << here.status().to_string();
      EXPECT_EQ(here->raced, 0U);
      EXPECT_EQ(here->compilations, 0U);
      EXPECT_TRUE(is_tuned(*here));
      EXPECT_EQ(heads_of(*here, "program").front().artifact, heads_of(tuned, "program").front().artifact);
      publish(*here);
      m_supply = nullptr;
      EXPECT_EQ(build_it(Tuning::all, graph).value().raced, 0U) << "without those who had it, too";
    }
    m_store = std::move(CacheStore::open({.directory = m_directory.path()})).value();
  }
}

TEST_F(RacedElsewhereTest, a_record_from_elsewhere_whose_winner_is_gone_keeps_nothing_from_racing) {
  KeptSupply elsewhere;
  elsewhere.keep(build_it(Tuning::all).value());
  elsewhere.lose(ArtifactKind::code);
  m_supply = &elsewhere;
  const auto here = build_it(Tuning::all);
  ASSERT_TRUE(here.ok()) << here.status().to_string();
  EXPECT_EQ(here->raced, 1U);
  EXPECT_TRUE(is_tuned(*here));
  publish(*here);
}

TEST_F(RacedElsewhereTest, what_won_a_race_of_near_sizes_elsewhere_races_too) {
  KeptSupply elsewhere;
  elsewhere.keep(build_it(Tuning::all, product_of(40, 48, 72), narrow_by_one_way).value());
  m_supply = &elsewhere;
  const auto near = from_others(record_in(build_it(Tuning::all, product_of(40, 96, 72)).value()).value());
  ASSERT_EQ(near.size(), 1);
  EXPECT_EQ(near.front().schedule, unlisted().bytes);
}

}  // namespace
}  // namespace kiln
