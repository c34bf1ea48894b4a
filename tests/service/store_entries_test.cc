// What the daemon's store makes of results that come side by side.

#include "service/store_entries.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "autotune/record.h"
#include "cache/pack/pack_writer.h"
#include "cache/reader/reader.h"
#include "service/built_artifact.h"
#include "tests/cache/cache_testing.h"

namespace kiln {
namespace {

std::string parts_of(const std::string& level) { return nlohmann::json{{"level", level}, {"spec", "a kernel"}}.dump(); }
Digest key_of(const std::string& level) { return digest_of(parts_of(level)); }

class StoreEntriesTest : public ::testing::Test {
 protected:
  /// A race of schedule 0, which all know, and schedule `winner`, which wins with such a time; the winner's code is so large.
  static BuildResult raced(uint8_t winner, double seconds) {
    TuningRecord record{"gemm_f32_8x8x8_nn", "a processor", {}, 1, {}};
    record.candidates.push_back({.description = "0", .schedule = {0}, .seconds = {2}});
    record.candidates.push_back({.description = "w", .schedule = {winner}, .seconds = {seconds}});
    const std::string json = record.to_json();
    BuildResult result;
    result.artifacts.push_back(named_artifact(ArtifactKind::record, {}, {json.begin(), json.end()}));
    result.artifacts.push_back(code_artifact({.code = std::vector<uint8_t>(100U + winner), .tasks = 1}, "cpu"));
    result.heads.push_back({key_of("tuning"), result.artifacts[0].digest, 0, parts_of("tuning")});
    result.heads.push_back({key_of("near"), result.artifacts[0].digest, 0, parts_of("near")});
    result.heads.push_back({key_of("code"), result.artifacts[1].digest, 1, parts_of("code")});
    return result;
  }
  void publish(const BuildResult& result) {
    const Status status = m_store->publish(result, {}, false);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  /// Has the store install a pack with what the build made, as another daemon's.
  void install(const BuildResult& result) {
    const std::string trust = m_packs.path("trust"), path = m_packs.path("a.kpack");
    const auto key = SigningKey::create();
    std::filesystem::remove_all(trust);
    std::filesystem::create_directory(trust);
    ASSERT_TRUE(key.ok() && key->write(m_packs.path("kiln.key"), trust + "/kiln.pub").ok());
    std::filesystem::remove(m_packs.path("kiln.key"));
    std::map<Digest, Artifact> artifacts;
    for (const BuiltArtifact& built : result.artifacts) artifacts[built.digest] = artifact_of(built);
    std::map<Digest, const BuiltHead*> heads;
    for (const BuiltHead& head : result.heads) heads[head.key] = &head;
    auto pack = PackWriter::create(path, artifacts.size(), heads.size());
    ASSERT_TRUE(pack.ok()) << pack.status().to_string();
    for (const auto& [digest, artifact] : artifacts) ASSERT_TRUE(pack->add(artifact).ok());
    for (const auto& [digest, head] : heads) {
      ASSERT_TRUE(pack->add(digest, head->artifact, head->generation, {head->key_parts, "{}", {}}).ok());
    }
    ASSERT_TRUE(pack->finish(&*key).ok());
    const nlohmann::json asked{{"path", path}, {"trust", trust}};
    const auto done = m_store->command({.verb = protocol::Verb::install, .text = asked.dump()});
    ASSERT_TRUE(done.ok()) << done.status().to_string();
  }
  TuningRecord record() {
    const auto reader = testing::open_reader(m_directory.path());
    kiln_view view;
    EXPECT_EQ(kiln_reader_find_key(reader.get(), key_of("tuning").bytes.data(), KILN_ARTIFACT_RECORD, &view), KILN_HIT);
    return TuningRecord::parse({reinterpret_cast<const char*>(view.payload), view.header.payload_size}).value();
  }
  /// Of the winner whose code is in force.
  uint64_t winner_in_force() {
    const auto reader = testing::open_reader(m_directory.path());
    kiln_view view;
    EXPECT_EQ(kiln_reader_find_key(reader.get(), key_of("code").bytes.data(), KILN_ARTIFACT_CODE, &view), KILN_HIT);
    return view.header.payload_size - 100;
  }

  /// After a race that winner 1 has won in 1.5 s, as the races of others are brought.
  template <typename Bring>
  void expect_merged(Bring bring) {
    bring(raced(2, 1.0));
    EXPECT_EQ(record().candidates.size(), 3);
    EXPECT_EQ(winner_in_force(), 2);
    bring(raced(3, 1.2));
    EXPECT_EQ(record().candidates.size(), 4);
    EXPECT_EQ(winner_in_force(), 2);
  }

  testing::TemporaryDirectory m_directory, m_packs;
  std::unique_ptr<EntryStore> m_store = open_entry_store({.cache_directory = m_directory.path()}).value();
};

TEST_F(StoreEntriesTest, records_of_races_side_by_side_are_merged_and_the_better_winner_runs) {
  publish(raced(1, 1.5));
  expect_merged([this](const BuildResult& result) { publish(result); });
  const std::string before = record().to_json();
  publish(raced(1, 1.5));
  EXPECT_EQ(record().to_json(), before) << "it was known";
}

TEST_F(StoreEntriesTest, records_of_two_daemons_are_merged_and_the_better_winner_runs) {
  publish(raced(1, 1.5));
  expect_merged([this](const BuildResult& result) { install(result); });
}

TEST_F(StoreEntriesTest, a_damaged_record_leaves_the_one_that_came_first) {
  publish(raced(1, 1.5));
  BuildResult damaged = raced(2, 1.0);
  const std::vector<uint8_t>& whole = damaged.artifacts[0].payload;
  damaged.artifacts[0] = named_artifact(ArtifactKind::record, {}, {whole.begin(), whole.begin() + 40});
  damaged.heads[0].artifact = damaged.heads[1].artifact = damaged.artifacts[0].digest;
  publish(damaged);
  EXPECT_EQ(record().candidates.size(), 2);
  EXPECT_EQ(winner_in_force(), 1);
}

}  // namespace
}  // namespace kiln
