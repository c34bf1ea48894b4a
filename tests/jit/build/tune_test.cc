// A build that races: winners, kernels and plans, are verified, recorded and linked, and what has raced does not race again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "autotune/record.h"
#include "base/hex.h"
#include "frontend/canonical/canonical.h"
#include "frontend/infer/builder.h"
#include "jit/build/kernels/tune_kernels.h"
#include "jit/build/plan/plan_regions.h"
#include "tests/autotune/neighbour.h"
#include "tests/jit/build/tune_testing.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

/// A product of some milliseconds.
Graph product() { return product_of(384, 512, 768); }

/// Two that share nothing: there is one plan of them.
Graph two_products() {
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = graph.add_input({DType::f32, {Dim(40), Dim(72)}, {}});
  const ValueId y = graph.add_input({DType::f32, {Dim(40), Dim(72)}, {}});
  const ValueId v = graph.add_input({DType::f32, {Dim(72), Dim(48)}, {}});
  const ValueId w = graph.add_input({DType::f32, {Dim(72), Dim(96)}, {}});
  graph.set_outputs({builder.op("matmul", {x, v}), builder.op("matmul", {y, w})});
  EXPECT_TRUE(builder.status().ok()) << builder.status().to_string();
  return graph;
}

TEST_F(TuneTest, a_program_that_is_too_large_to_be_judged_is_built_and_its_head_says_why) {
  const auto judged = build_it(Tuning::off);
  ASSERT_TRUE(judged.ok()) << judged.status().to_string();
  EXPECT_EQ(heads_of(*judged, "program").front().not_judged, "");
  m_program_verdict_max_bytes = 1'000;
  const auto large = build_it(Tuning::off);
  ASSERT_TRUE(large.ok()) << large.status().to_string();
  const std::string why = heads_of(*large, "program").front().not_judged;
  EXPECT_TRUE(why.starts_with("it needs ") && why.ends_with(" bytes, at most 1000")) << why;
}

TEST_F(TuneTest, a_race_gives_a_later_generation_and_a_record) {
  const auto first = build_it(Tuning::off);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_FALSE(is_tuned(*first));
  EXPECT_TRUE(heads_of(*first, "tuning").empty());
  publish(*first);

  const auto tuned = build_it(Tuning::all);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  EXPECT_TRUE(is_tuned(*tuned));
  ASSERT_EQ(heads_of(*tuned, "code").size(), 1) << "the loop does not race";
  EXPECT_EQ(heads_of(*tuned, "code").front().generation, 1);
  EXPECT_EQ(heads_of(*tuned, "program").front().generation, 1);
  ASSERT_EQ(heads_of(*tuned, "tuning").size(), 1);
  const auto record = record_in(*tuned);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_GT(record->candidates.size(), 1);
  EXPECT_FALSE(record->candidates.front().seconds.empty());
  EXPECT_FALSE(record->machine.empty());
  publish(*tuned);

  const auto again = build_it(Tuning::all);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->compilations, 0);
  EXPECT_TRUE(heads_of(*again, "tuning").empty());
  EXPECT_EQ(heads_of(*again, "program").front().artifact, heads_of(*tuned, "program").front().artifact);
}

TEST_F(TuneTest, the_first_build_may_race_at_once) {
  const auto tuned = build_it(Tuning::all);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  EXPECT_TRUE(is_tuned(*tuned));
  publish(*tuned);
}

TEST_F(TuneTest, what_has_raced_races_again_when_it_is_told_to) {
  const auto tuned = build_it(Tuning::all);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  EXPECT_EQ(tuned->raced, 1);
  publish(*tuned);
  const auto again = build_it(Tuning::again);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->raced, 1);
  EXPECT_TRUE(again->is_tuned);
  EXPECT_EQ(heads_of(*again, "code").front().generation, 2);
  EXPECT_TRUE(record_in(*again).ok());
  publish(*again);
}

TEST_F(TuneTest, a_damaged_record_is_a_miss_of_the_record_and_not_of_the_kernel) {
  auto tuned = build_it(Tuning::all).value();
  const Digest before = heads_of(tuned, "tuning").at(0).artifact;
  BuiltArtifact& record = *std::ranges::find(tuned.artifacts, before, &BuiltArtifact::digest);
  record = named_artifact(ArtifactKind::record, {}, {record.payload.begin(), record.payload.begin() + 40});
  for (BuiltHead& head : tuned.heads) {
    if (head.artifact == before) head.artifact = record.digest;
  }
  publish(tuned);
  const auto untuned = build_it(Tuning::off);
  ASSERT_TRUE(untuned.ok()) << untuned.status().to_string();
  EXPECT_EQ(untuned->compilations, 0);
  EXPECT_TRUE(is_tuned(*untuned)) << "the winner runs";
  const auto again = build_it(Tuning::all);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->raced, 1);
  EXPECT_EQ(heads_of(*again, "code").front().generation, 2);
  EXPECT_TRUE(record_in(*again).ok());
  publish(*again);
}

TEST_F(TuneTest, what_is_to_be_deterministic_never_races_and_takes_nothing_that_has) {
  const auto tuned = build_it(Tuning::all);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  publish(*tuned);
  m_is_deterministic = true;
  const auto first = build_it(Tuning::all);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(first->raced, 0);
  EXPECT_TRUE(first->is_tuned) << "nothing is left to be tuned";
  EXPECT_EQ(heads_of(*first, "program").front().generation, 0);
  for (const BuiltHead& code : heads_of(*first, "code")) EXPECT_EQ(code.generation, 0);
  EXPECT_EQ(heads_of(*first, "code").size(), 2) << "both kernels are made anew";
  publish(*first);
}

TEST_F(TuneTest, what_races_on_fewer_threads_is_for_programs_on_as_many) {
  const auto on_all = build_it(Tuning::all).value();
  publish(on_all);
  m_threads = 1;
  const auto untuned = build_it(Tuning::off).value();
  EXPECT_EQ(untuned.compilations, 0U) << "code is anybody's until it has raced";
  EXPECT_FALSE(untuned.is_tuned);
  publish(untuned);
  const auto tuned = build_it(Tuning::all).value();
  EXPECT_TRUE(tuned.is_tuned);
  ASSERT_GE(tuned.raced, 1U);
  for (const TuningRecord& record : records_in(tuned)) EXPECT_EQ(record.host.threads, 1U);
  for (const BuiltHead& code : heads_of(tuned, "code"))
    EXPECT_THAT(code.key_parts, ::testing::HasSubstr(R"("threads":"1")"));
  publish(tuned);
  EXPECT_EQ(build_it(Tuning::all).value().raced, 0U);

  m_threads = 0;
  const auto again = build_it(Tuning::all).value();
  EXPECT_EQ(again.raced, 0U) << "others' races change nothing here";
  EXPECT_EQ(heads_of(again, "program").at(0).artifact, heads_of(on_all, "program").at(0).artifact);
}

TEST_F(TuneTest, a_build_in_the_background_leaves_nothing_when_it_has_time) {
  publish(*build_it(Tuning::off));
  const auto tuned = build_it(Tuning::background);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  EXPECT_EQ(tuned->raced, 1);
  EXPECT_TRUE(tuned->is_tuned);
}

TEST_F(TuneTest, the_next_build_goes_on_where_one_was_ended) {
  for (const Graph& graph : {two_products(), product_and_gelu()}) {
    bool is_ended = false;  // after its first race
    m_keep = [&](const BuildResult& found) {
      if (!std::exchange(is_ended, true)) publish(found);
    };
    const auto ended = build_it(Tuning::all, graph);
    ASSERT_TRUE(ended.ok()) << ended.status().to_string();
    ASSERT_GE(ended->raced, 2);
    const auto next = build_it(Tuning::all, graph);
    ASSERT_TRUE(next.ok()) << next.status().to_string();
    EXPECT_EQ(next->raced, ended->raced - 1);
    EXPECT_TRUE(is_tuned(*next));
  }
}

TEST_F(TuneTest, all_that_races_find_is_kept_before_the_end) {
  BuildResult kept;
  m_keep = [&](const BuildResult& found) {
    kept.raced += found.raced;
    publish(found);
  };
  const auto whole = build_it(Tuning::all, two_products());
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  EXPECT_EQ(kept.raced, whole->raced);
  m_keep = [](const BuildResult&) {};
  const auto next = build_it(Tuning::all, two_products());
  ASSERT_TRUE(next.ok()) << next.status().to_string();
  EXPECT_EQ(next->raced, 0);
  EXPECT_EQ(next->compilations, 0);
  EXPECT_TRUE(is_tuned(*next));
}

TEST_F(TuneTest, no_race_but_the_first_begins_late) {
  const Graph graph = two_products();
  const Target target = open_device({}).value().targets.front();
  const BuildTarget asked{*only_the_host("cpu"), target, Proof::verified};
  const BuildEnvironment environment = this->environment();
  Published published(m_directory.path());
  const RegionPartition partition = find_regions(settle_layouts(canonicalise(graph).graph));
  const auto regions = plan_regions(partition, asked, published, environment);
  ASSERT_TRUE(regions.ok()) << regions.status().to_string();
  const std::vector<Plan>& plans = regions->plans;
  auto chosen = choose_kernels(plans, asked, published, environment);
  ASSERT_TRUE(chosen.ok()) << chosen.status().to_string();
  const auto raced = tune_kernels(plans, asked, published, environment, {.deadline = Clock::now()}, *chosen);
  ASSERT_TRUE(raced.ok()) << raced.status().to_string();
  EXPECT_EQ(*raced, 1);
}

TEST_F(TuneTest, a_bad_order_is_recovered_from) {
  if (k_is_slowed) GTEST_SKIP() << "what sanitizers run beside it disturbs every sample";
  const auto bad = build_it(Tuning::off, product(), badly_ordered);
  ASSERT_TRUE(bad.ok()) << bad.status().to_string();
  publish(*bad);
  const auto tuned = build_it(Tuning::background, product());
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  const auto record = record_in(*tuned);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_NE(record->winner, 0);
  EXPECT_NE(heads_of(*tuned, "code").front().artifact, heads_of(*bad, "code").front().artifact);
}

TEST_F(TuneTest, a_region_takes_the_plan_that_wins_and_keeps_it) {
  if (k_is_slowed) GTEST_SKIP() << "what sanitizers run beside it disturbs every sample";
  const Graph graph = product_and_gelu();
  const auto fused = build_it(Tuning::off, graph, slow_when_fused);
  ASSERT_TRUE(fused.ok()) << fused.status().to_string();
  EXPECT_FALSE(fused->is_tuned);
  EXPECT_EQ(heads_of(*fused, "code").size(), 1);
  publish(*fused);

  const auto tuned = build_it(Tuning::background, graph, slow_when_fused);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  EXPECT_EQ(tuned->raced, 2) << "the plans, and the product of the one that won";
  EXPECT_TRUE(is_tuned(*tuned));
  const TuningRecord record = records_in(*tuned).front();
  EXPECT_TRUE(record.kernel.starts_with("plan with gemm_f32_150x260x200")) << record.kernel;
  ASSERT_EQ(record.candidates.size(), 2);
  EXPECT_EQ(record.candidates[record.winner].description, "heavy epilogues apart");
  EXPECT_TRUE(record.candidates[1].is_finalist);
  EXPECT_EQ(heads_of(*tuned, "program").front().generation, 2);
  EXPECT_EQ(heads_of(*tuned, "program").front().not_judged, "") << "it was held against the reference";
  publish(*tuned);

  for (const Tuning tuning : {Tuning::off, Tuning::all}) {
    const auto again = build_it(tuning, graph, slow_when_fused);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(again->raced, 0);
    EXPECT_EQ(again->compilations, 0);
    EXPECT_EQ(heads_of(*again, "program").front().artifact, heads_of(*tuned, "program").front().artifact);
  }
}

TEST_F(TuneTest, products_that_share_an_operand_become_one_where_that_is_faster) {
  if (k_is_slowed) GTEST_SKIP() << "what sanitizers run beside it disturbs every sample";
  Graph graph;
  GraphBuilder builder(graph);
  const ValueId x = graph.add_input({DType::f32, {Dim(400), Dim(500)}, {}});
  std::vector<ValueId> products;
  for (int i = 0; i < 3; ++i) {
    products.push_back(builder.matmul(x, graph.add_input({DType::f32, {Dim(500), Dim(40)}, {}})));
  }
  graph.set_outputs(std::move(products));
  const auto tuned = build_it(Tuning::all, graph, slow_when_narrow);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  const TuningRecord record = records_in(*tuned).front();
  ASSERT_EQ(record.candidates.size(), 2);
  EXPECT_EQ(record.candidates[record.winner].description, "products merged");
  EXPECT_EQ(heads_of(*tuned, "program").front().not_judged, "") << "it was held against the reference";
}

TEST_F(TuneTest, plans_of_the_same_kernels_do_not_race) {
  const Plan plan = fuse(product_and_loop()).value();
  EXPECT_EQ(fuse_choices(plan.graph).size(), 2) << "a product and functions are there, but none behind the product";
  EXPECT_TRUE(other_plans(plan).empty());
  EXPECT_EQ(other_plans(fuse(product_and_gelu()).value()).size(), 1);
}

TEST_F(TuneTest, a_plan_that_is_to_be_deterministic_never_races) {
  m_is_deterministic = true;
  const auto built = build_it(Tuning::all, product_and_gelu(), slow_when_fused);
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_EQ(built->raced, 0);
  EXPECT_TRUE(built->is_tuned) << "nothing is left to be tuned";
  EXPECT_EQ(heads_of(*built, "code").size(), 1) << "it is as the model has it";
}

TEST_F(TuneTest, what_won_a_race_of_near_sizes_races_too) {
  const auto near = from_others_after_a_narrow_race(product_of(40, 96, 72));
  ASSERT_EQ(near.size(), 1);
  EXPECT_EQ(near.front().schedule, unlisted().bytes);
  EXPECT_EQ(near.front().origin, "gemm_f32_40x48x72_nn");
  const std::string& dropped = near.front().dropped;
  EXPECT_TRUE(dropped.empty() || dropped.starts_with("it took ")) << dropped;
}

TEST_F(TuneTest, what_won_a_race_of_far_sizes_does_not) {
  EXPECT_TRUE(from_others_after_a_narrow_race(product_of(160, 384, 72)).empty());
}

TEST_F(TuneTest, a_damaged_record_of_near_sizes_is_none) {
  const auto cut = [](std::string& json) { json.resize(json.size() / 2); };
  EXPECT_TRUE(from_others_after_a_narrow_race(product_of(40, 96, 72), cut).empty());
}

TEST_F(TuneTest, a_record_of_near_sizes_of_another_version_is_none) {
  const auto age = [](std::string& json) { json.replace(json.find("\"version\":"), 11, "\"version\":1"); };
  EXPECT_TRUE(from_others_after_a_narrow_race(product_of(40, 96, 72), age).empty());
}

TEST_F(TuneTest, a_near_schedule_that_does_not_fit_drops_out) {
  const auto bend = [](std::string& json) {
    const std::string fits = to_hex(unlisted().bytes);
    const cpu::OuterProductSchedule large{.tile_rows = 300};
    json.replace(json.find(fits), fits.size(), to_hex(encode_choices(large)));
  };
  const auto near = from_others_after_a_narrow_race(product_of(40, 96, 72), bend);
  ASSERT_EQ(near.size(), 1);
  EXPECT_NE(near.front().dropped, "");
  EXPECT_FALSE(near.front().dropped.starts_with("it took ")) << "it cannot be made";
}

TEST_F(TuneTest, kernels_of_one_build_learn_from_each_other) {
  const auto tuned = build_it(Tuning::all, two_products(), narrow_by_one_way);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  size_t learned = 0;
  for (const TuningRecord& record : records_in(*tuned)) learned += from_others(record).size();
  EXPECT_EQ(learned, 1) << "of the second kernel that raced";
  publish(*tuned);
}

TEST_F(TuneTest, a_neighbourhood_leads_to_its_latest_race) {
  const auto first = build_it(Tuning::all);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  publish(*first);
  const auto again = build_it(Tuning::again);
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  ASSERT_EQ(heads_of(*again, "near").size(), 1);
  EXPECT_EQ(heads_of(*again, "near").front().key, heads_of(*first, "near").at(0).key);
  EXPECT_EQ(heads_of(*again, "near").front().generation, 1);
}

TEST_F(TuneTest, a_wrong_candidate_that_wins_a_race_drops_out_and_the_others_race_again) {
  const auto tuned = build_it(Tuning::all, product_and_loop(), bad_ones_behind_the_first);
  ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
  const auto record = record_in(*tuned);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  const auto& all = record->candidates;
  const auto idle = std::ranges::find(all, "idle", &TuningRecord::Candidate::description);
  ASSERT_NE(idle, all.end());
  EXPECT_THAT(idle->dropped, HasSubstr("was not written")) << "its verdict";
  EXPECT_TRUE(idle->is_finalist) << "it won a race";
  EXPECT_NE(&all[record->winner], &*idle);
  EXPECT_FALSE(all[record->winner].seconds.empty());
  const auto why_dropped = [&](std::string_view description) {
    return std::ranges::find(all, description, &TuningRecord::Candidate::description)->dropped;
  };
  EXPECT_THAT(why_dropped("crashing"), HasSubstr("died of signal"));
  EXPECT_THAT(why_dropped("slow"), HasSubstr("times as long"));
  EXPECT_EQ(all[record->winner].dropped, "");
}

TEST_F(TuneTest, a_bad_order_is_recovered_from_beside_a_neighbour_with_the_same_pick) {
  if (k_is_slowed) GTEST_SKIP() << "what sanitizers run beside it disturbs every sample";
  std::vector<std::string> picks;
  for (const bool is_alone : {true, false}) {
    const auto neighbour = is_alone ? nullptr : std::make_unique<testing::Neighbour>();
    const auto tuned = build_it(Tuning::all, product(), far_apart);
    ASSERT_TRUE(tuned.ok()) << tuned.status().to_string();
    const auto record = record_in(*tuned);
    ASSERT_TRUE(record.ok()) << record.status().to_string();
    EXPECT_NE(record->winner, 0);
    picks.push_back(record->candidates[record->winner].description);
  }
  EXPECT_EQ(picks[0], picks[1]);
}

}  // namespace
}  // namespace kiln
