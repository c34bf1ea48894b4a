// A fleet's store whose code nobody trusted signed, on hosts that judge it: what is given as a candidate, what is refused, and
// whose entry stays.

#include <algorithm>

#include "cache/fleet/sealed_entry.h"
#include "tests/cache/fleet_testing.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

/// Code under a key that tells its seed; `body` is what it does.
SourceEntry code_of(uint64_t seed, uint8_t body = 0xc3, uint32_t generation = 0) {
  const std::string parts = fmt::format(R"({{"level":"code","seed":{}}})", seed);
  SourceEntry entry{.key = digest_of(parts), .generation = generation, .canonical_key = parts};
  entry.artifact = {ArtifactKind::code, {0, 1, 0, 0, "cpu"}, std::vector<uint8_t>(64, body)};
  entry.digest = artifact_digest(entry.artifact);
  return entry;
}

std::string name_of_code(uint64_t seed) { return "kiln1:" + code_of(seed).key.to_hex(); }

class FleetCandidatesTest : public FleetTest {
 protected:
  void SetUp() override {
    if (!has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
    FleetTest::SetUp();
    m_redis = std::make_unique<RedisServer>();
  }

  /// A host that judges. `signer`, `trusted`: whose key it has, and whom it believes; empty: none.
  std::unique_ptr<FleetTier> judge(const std::string& signer = "", const std::string& trusted = "") {
    const auto folder = [&](const std::string& who) { return who.empty() ? "" : m_directory.path(who); };
    const std::string key = signer.empty() ? "" : folder(signer) + "/kiln.key";
    auto tier =
        FleetTier::open({{m_redis->url(), ""}, key, folder(trusted), "", true}, [this](const std::string& said) {
          const std::scoped_lock lock(m_mutex);
          m_said.push_back(said);
        });
    EXPECT_TRUE(tier.ok()) << tier.status().to_string();
    return std::move(*tier);
  }

  static std::optional<SourceEntry> find_code(FleetTier& tier, uint64_t seed) {
    const Digest key = code_of(seed).key;
    Patience patience{std::chrono::milliseconds(k_patience_ms)};
    auto found = tier.find({&key, 1}, ArtifactKind::code, patience);
    return found.empty() ? std::nullopt : std::optional(std::move(found[0]));
  }

  std::string kept(uint64_t seed) const { return m_redis->ask({"GET", name_of_code(seed)}); }
  /// As somebody who merely can write to the store.
  void plant(const SourceEntry& entry, const SigningKey* signer = nullptr) const {
    const auto bytes = seal(entry, signer);
    ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
    m_redis->ask({"SET", "kiln1:" + entry.key.to_hex(), std::string(bytes->begin(), bytes->end())});
  }

  std::unique_ptr<RedisServer> m_redis;
};

TEST_F(FleetCandidatesTest, HostsWithoutKeysGiveEachOtherCodeAsCandidatesAndNothingElse) {
  const auto first = judge(), second = judge();
  EXPECT_TRUE(first->takes(code_of(1).key, ArtifactKind::code, 0));
  EXPECT_FALSE(first->takes(code_of(1).key, ArtifactKind::code, 1)) << "the winner of a race that nobody saw";
  for (const auto kind : {ArtifactKind::plan, ArtifactKind::program, ArtifactKind::capture}) {
    EXPECT_FALSE(first->takes(code_of(1).key, kind, 0));
  }
  first->offer(entry_of(7));
  first->offer(code_of(7, 0xc3, 1));
  write(*first, {code_of(1)});
  EXPECT_EQ(kept(7) + m_redis->ask({"GET", name_of(7)}), "");

  const auto found = find_code(*second, 1);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->is_proven);
  EXPECT_EQ(found->artifact, code_of(1).artifact);
  EXPECT_EQ(found->digest, code_of(1).digest);
  EXPECT_FALSE(second->takes(code_of(1).key, ArtifactKind::code, 0)) << "it is there";
  EXPECT_FALSE(find_code(*host(m_redis->url()), 1)) << "who does not judge refuses it";
}

TEST_F(FleetCandidatesTest, OfStrangersOnlyWholeCodeIsACandidateAndNoGenerationOfTheirsCounts) {
  const auto theirs = SigningKey::read(m_directory.path("theirs") + "/kiln.key");
  ASSERT_TRUE(theirs.ok());
  const auto tier = judge("", "ours");
  plant(code_of(1, 0xc3, 5), &*theirs);
  const auto found = find_code(*tier, 1);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->is_proven);
  EXPECT_EQ(found->generation, 0U);

  plant(entry_of(2));
  EXPECT_FALSE(finds(*tier, 2)) << "a plan";
  const std::string good = kept(1);
  std::string cut = good.substr(0, good.size() - 64), flipped = good;
  flipped[KILN_PAGE_BYTES + 150] ^= 1;  // in the code
  for (const std::string& lie : {cut, flipped, std::string("nonsense"), m_redis->ask({"GET", name_of(2)})}) {
    m_redis->ask({"SET", name_of_code(1), lie});
    EXPECT_FALSE(find_code(*tier, 1));
  }
  SourceEntry with_capture = code_of(3);
  const Artifact capture{ArtifactKind::capture, {}, {1, 2, 3}};
  with_capture.needs.emplace_back(artifact_digest(capture), capture);
  plant(with_capture);
  EXPECT_FALSE(find_code(*tier, 3));
  EXPECT_EQ(tier->counts().entries_refused, 6U);
}

TEST_F(FleetCandidatesTest, WhatATrustedHostSignedTakesThePlaceOfACandidateAndKeepsIt) {
  const auto unsigned_host = judge("", "ours");
  write(*unsigned_host, {code_of(1)});
  const std::string unsigned_entry = kept(1);
  const auto signing_host = judge("ours", "ours");
  ASSERT_TRUE(find_code(*signing_host, 1));
  write(*signing_host, {code_of(1)});
  const std::string signed_entry = kept(1);
  EXPECT_NE(signed_entry, unsigned_entry);
  const auto found = find_code(*judge("", "ours"), 1);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->is_proven);

  write(*judge(), {code_of(1, 0x90)});  // which has not seen that there is one
  EXPECT_EQ(kept(1), signed_entry);
}

TEST_F(FleetCandidatesTest, ACandidateThatIsRejectedIsNotGivenAgainAndWhatIsMadeHereTakesItsPlace) {
  const auto tier = judge();
  plant(code_of(1, 0x90));
  auto found = find_code(*tier, 1);
  ASSERT_TRUE(found);
  tier->reject(found->key, found->digest, "output 0: element 3 is 1, expected 2");
  EXPECT_EQ(tier->counts().entries_rejected, 1U);
  EXPECT_THAT(m_said.back(), HasSubstr("element 3 is 1, expected 2"));
  EXPECT_FALSE(find_code(*tier, 1));

  write(*tier, {code_of(1)});
  found = find_code(*judge(), 1);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->artifact, code_of(1).artifact);
}

TEST_F(FleetCandidatesTest, HostsWithoutKeysLetOneOfThemMakeWhatSeveralWant) {
  const auto first = judge(), second = judge();
  const std::vector<Digest> keys = {code_of(1).key};
  Patience patience{std::chrono::milliseconds(k_patience_ms)};
  EXPECT_TRUE(first->lease(keys, patience).empty());
  EXPECT_EQ(second->lease(keys, patience), keys);
  first->offer(code_of(1));
  first->give_up(keys);
  EXPECT_TRUE(wait_until([&] { return second->lease(keys, patience).empty(); }));
  EXPECT_TRUE(find_code(*second, 1));
}

}  // namespace
}  // namespace kiln::testing
