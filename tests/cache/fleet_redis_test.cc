// A fleet's store in Redis: what one host built others find, whoever else writes there, and whatever becomes of the store.

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "base/limits.h"
#include "tests/cache/fleet_testing.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

class RedisFleetTest : public FleetTest {
 protected:
  void SetUp() override {
    if (!has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
    FleetTest::SetUp();
  }
};

TEST_F(RedisFleetTest, WhatOneHostBuiltAnotherOneFindsInOneRoundTrip) {
  const RedisServer redis;
  const auto first = host(redis.url()), second = host(redis.url());
  SourceEntry whole = entry_of(100);
  for (const uint64_t seed : {101, 102}) {
    const SourceEntry need = entry_of(seed);
    whole.needs.emplace_back(need.digest, need.artifact);
  }
  std::vector<SourceEntry> entries = {whole};
  std::vector<uint64_t> seeds = {100};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    entries.push_back(entry_of(seed, plan_size(seed), 3));
    seeds.push_back(seed);
  }
  write(*first, entries);
  seeds.push_back(999);
  const auto found = find(*second, seeds);
  ASSERT_EQ(found.size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(found[i].key, entries[i].key);
    EXPECT_EQ(found[i].generation, entries[i].generation);
    EXPECT_EQ(found[i].digest, entries[i].digest);
    EXPECT_EQ(found[i].artifact, entries[i].artifact);
    EXPECT_EQ(found[i].canonical_key, entries[i].canonical_key);
  }
  std::ranges::sort(whole.needs, {}, &std::pair<Digest, Artifact>::first);
  EXPECT_EQ(found[0].needs, whole.needs);
  EXPECT_THAT(redis.ask({"INFO", "commandstats"}), HasSubstr("cmdstat_mget:calls=1,"));
}

TEST_F(RedisFleetTest, WhoDoesNotSignWritesNothingAndWhoTrustsNobodyFindsNothing) {
  const RedisServer redis;
  const auto reader = host(redis.url(), "ours", false);
  EXPECT_FALSE(reader->takes(entry_of(1).key, ArtifactKind::plan, 0));
  reader->offer(entry_of(1));
  write(*host(redis.url()), {entry_of(2)});
  EXPECT_EQ(redis.ask({"GET", name_of(1)}), "");
  EXPECT_TRUE(finds(*reader, 2));
  EXPECT_FALSE(finds(*host(redis.url(), "theirs"), 2));
  EXPECT_THAT(m_said.at(0), HasSubstr("whom packs.trust does not name"));
}

TEST_F(RedisFleetTest, AStoreThatLiesIsNotBelievedAndWhatItHasIsReplaced) {
  const RedisServer redis;
  const auto tier = host(redis.url());
  write(*tier, {entry_of(1), entry_of(2)});
  const std::string good = redis.ask({"GET", name_of(1)});
  const auto lie = [&](const std::string& value) {
    redis.ask({"SET", name_of(1), value});
    return !finds(*tier, 1);
  };
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string flipped = good;
    flipped[random() % flipped.size()] ^= static_cast<char>(1 << (random() % 8));
    redis.ask({"SET", name_of(1), flipped});
    finds(*tier, 1);  // its own bytes (between pieces lie some that nothing reads), or nothing
  }
  EXPECT_TRUE(lie(good.substr(0, good.size() - 64)));
  EXPECT_TRUE(lie(good + std::string(64, '\0')));
  EXPECT_TRUE(lie(""));
  EXPECT_TRUE(lie(std::string(1 << 20, '\xff')));
  EXPECT_TRUE(lie(redis.ask({"GET", name_of(2)})));  // signed, for another key
  const RedisServer elsewhere;
  write(*host(elsewhere.url(), "theirs"), {entry_of(1)});
  EXPECT_TRUE(lie(elsewhere.ask({"GET", name_of(1)})));  // signed by a stranger
  EXPECT_GE(tier->counts().entries_refused, 6U);

  write(*tier, {entry_of(1)});
  EXPECT_EQ(redis.ask({"GET", name_of(1)}), good);
}

TEST_F(RedisFleetTest, TheFirstEntryOfAKeyStaysUntilALaterGenerationComes) {
  const RedisServer redis;
  write(*host(redis.url()), {entry_of(1, 300)});
  const std::string first = redis.ask({"GET", name_of(1)});
  write(*host(redis.url()), {entry_of(1, 500)});
  EXPECT_EQ(redis.ask({"GET", name_of(1)}), first);
  write(*host(redis.url()), {entry_of(1, 500, 1)});
  EXPECT_NE(redis.ask({"GET", name_of(1)}), first);
}

/// Which of the seeds' entries another host makes.
std::vector<Digest> elsewhere(FleetTier& tier, std::vector<uint64_t> seeds) {
  std::vector<Digest> keys;
  for (const uint64_t seed : seeds) keys.push_back(entry_of(seed).key);
  Patience patience{std::chrono::milliseconds(k_patience_ms)};
  return tier.lease(keys, patience);
}

TEST_F(RedisFleetTest, OneHostMakesWhatSeveralWantUntilItGivesItUp) {
  const RedisServer redis;
  const auto first = host(redis.url()), second = host(redis.url()), reader = host(redis.url(), "ours", false);
  const Digest one = entry_of(1).key, two = entry_of(2).key;
  EXPECT_TRUE(elsewhere(*first, {1, 2}).empty());
  EXPECT_TRUE(elsewhere(*first, {1, 2}).empty()) << "its own";
  EXPECT_THAT(elsewhere(*second, {1, 2, 3}), ::testing::ElementsAre(one, two));
  EXPECT_THAT(elsewhere(*first, {3}), ::testing::ElementsAre(entry_of(3).key));
  EXPECT_TRUE(elsewhere(*reader, {1, 2, 3}).empty()) << "who gives nothing asks nobody to wait, and waits for nobody";

  first->offer(entry_of(1));
  first->give_up({{one, two}});
  EXPECT_TRUE(wait_until([&] { return elsewhere(*second, {1, 2}).empty(); }));
  EXPECT_TRUE(finds(*second, 1)) << "what was offered is there before others may make it";
}

TEST_F(RedisFleetTest, ALeaseIsRenewedWhileItsHostLivesAndTakenOverAfterwards) {
  const RedisServer redis;
  auto first = host(redis.url());
  const auto second = host(redis.url());
  EXPECT_TRUE(elsewhere(*first, {1}).empty());
  const std::string name = "kiln1:lease:" + entry_of(1).key.to_hex();
  const auto left_ms = [&] { return std::stoll(redis.ask({"PTTL", name})); };
  EXPECT_LE(left_ms(), int64_t{limits::k_fleet_lease_ms});  // the store's clock alone counts
  redis.ask({"PEXPIRE", name, std::to_string(limits::k_fleet_lease_renewal_ms + 1'000)});
  EXPECT_TRUE(wait_until([&] { return left_ms() > int64_t{limits::k_fleet_lease_renewal_ms} + 1'000; })) << "renewed";
  first.reset();  // as one that dies: it says nothing
  EXPECT_EQ(elsewhere(*second, {1}).size(), 1U);
  redis.ask({"PEXPIRE", name, "1"});  // its term ends
  EXPECT_TRUE(wait_until([&] { return elsewhere(*second, {1}).empty(); }));
}

TEST_F(RedisFleetTest, WhoWaitedInVainWaitsForNobodyForAWhile) {
  const RedisServer redis;
  const auto first = host(redis.url()), second = host(redis.url());
  EXPECT_TRUE(elsewhere(*first, {1}).empty());
  EXPECT_EQ(elsewhere(*second, {1}).size(), 1U);
  second->note_wait(false);
  EXPECT_TRUE(elsewhere(*second, {1}).empty());
  EXPECT_TRUE(wait_until([&] { return elsewhere(*second, {1}).size() == 1; }));
}

TEST_F(RedisFleetTest, AStoreThatGivesNoLeasesLetsEverybodyMakeEverything) {
  const RedisServer redis({"--rename-command", "EVAL", ""});
  const auto first = host(redis.url()), second = host(redis.url());
  EXPECT_TRUE(elsewhere(*first, {1}).empty());
  EXPECT_TRUE(elsewhere(*second, {1}).empty());
  write(*first, {entry_of(1)});
  EXPECT_TRUE(finds(*second, 1));
}

TEST_F(RedisFleetTest, ASlowStoreIsLeftAloneAndAskedAgainLater) {
  const RedisServer redis;
  const auto tier = host(redis.url());
  write(*tier, {entry_of(1)});
  ASSERT_TRUE(finds(*tier, 1));
  redis.ask({"CLIENT", "PAUSE", "3000"});
  const Digest key = entry_of(1).key;
  Patience patience{std::chrono::milliseconds(50)};
  EXPECT_TRUE(tier->find({&key, 1}, ArtifactKind::plan, patience).empty());
  EXPECT_LE(patience.left.count(), 0);
  EXPECT_EQ(tier->counts().searches_failed, 1U);
  EXPECT_TRUE(wait_until([&] { return finds(*tier, 1); }));
}

TEST_F(RedisFleetTest, AStoreThatIsGoneCostsNothingButItsEntriesAndGetsThemWhenItIsBack) {
  const uint16_t port = free_port();
  auto redis = std::make_unique<RedisServer>(std::vector<std::string>{}, port);
  const auto tier = host(redis->url());
  write(*tier, {entry_of(1)});
  redis->kill();
  EXPECT_FALSE(finds(*tier, 1));
  EXPECT_EQ(tier->counts().searches_failed, 1U);
  tier->offer(entry_of(2));
  redis = std::make_unique<RedisServer>(std::vector<std::string>{}, port);
  EXPECT_TRUE(wait_until([&] { return finds(*tier, 2); }));
  redis->kill();
  // What waits is bounded.
  const size_t size = limits::k_fleet_queue_bytes / 4;
  for (uint64_t seed = 10; seed < 16; ++seed) tier->offer(entry_of(seed, size));
  EXPECT_GE(tier->counts().entries_dropped, 2U);
}

TEST_F(RedisFleetTest, OfNonsenseNothingIsFoundAndNothingIsHarmed) {
  const std::vector<std::string> answers = {"",
                                            "+OK\r\n",
                                            "-ERR no\r\n",
                                            ":7\r\n",
                                            "$-1\r\n",
                                            "$-5\r\n",
                                            "*0\r\n",
                                            "*2\r\n$-1\r\n$-1\r\n",
                                            "*-1\r\n",
                                            "*1\r\n:5\r\n",
                                            "*1\r\n*1\r\n*1\r\n",
                                            "HTTP/1.1 400 Bad\r\n\r\n",
                                            "*100000000\r\n",
                                            "*1\r\n$99999999999999\r\n",
                                            "*1\r\n$5\r\nab",
                                            std::string(4096, '\0'),
                                            "\xff\xfe\r\n",
                                            "*1\r\n$3\r\nabc\r\n",
                                            "$3\r\nabc\r\n",
                                            "-MOVED \r\n",
                                            "-MOVED 1 nowhere\r\n",
                                            "-MOVED 1 127.0.0.1:99999\r\n",
                                            "-ASK 1 127.0.0.1:0\r\n",
                                            "-ASK 1 127.0.0.1:1\r\n"};
  for (const std::string& answer : answers) {
    const Peer liar([&](int socket) {
      char asked[4096];
      if (recv(socket, asked, sizeof asked, 0) <= 0) return;
      send(socket, answer.data(), answer.size(), MSG_NOSIGNAL);
    });
    const auto tier = host("redis://127.0.0.1:" + std::to_string(liar.port()));
    EXPECT_FALSE(finds(*tier, 1)) << answer;
    EXPECT_EQ(tier->counts().entries_found, 0U);
  }
  // One that never comes to an end.
  const Peer endless([](int socket) {
    send(socket, "*1\r\n$900000\r\n", 13, MSG_NOSIGNAL);
    while (send(socket, "a", 1, MSG_NOSIGNAL) == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  const auto tier = host("redis://127.0.0.1:" + std::to_string(endless.port()));
  const Digest key = entry_of(1).key;
  Patience patience{std::chrono::milliseconds(50)};
  EXPECT_TRUE(tier->find({&key, 1}, ArtifactKind::plan, patience).empty());
}

TEST_F(RedisFleetTest, InsideTlsAServerIsAskedForItsOwnCertificateOfSomebodyWhoIsKnown) {
  if (!has_program("openssl")) GTEST_SKIP() << "there is no openssl";
  const ServerCertificate its_own(m_directory.path("its_own"), "IP:127.0.0.1");
  const ServerCertificate anothers(m_directory.path("anothers"), "DNS:elsewhere.example");
  const uint16_t port = free_port(), other_port = free_port();
  const auto server_with = [](const ServerCertificate& certificate, uint16_t tls_port) {
    std::vector<std::string> settings = certificate.redis_settings(tls_port);
    settings.insert(settings.end(), {"--port", "0"});
    return std::make_unique<RedisServer>(settings, tls_port);
  };
  const auto server = server_with(its_own, port), other = server_with(anothers, other_port);
  const auto url = [](uint16_t of) { return "rediss://127.0.0.1:" + std::to_string(of); };

  EXPECT_FALSE(finds(*host(url(port)), 1));
  EXPECT_THAT(m_said.at(0), HasSubstr("certificate")) << "of whom nobody knows";
  EXPECT_FALSE(finds(*host("redis://127.0.0.1:" + std::to_string(port)), 1)) << "which does not speak without TLS";
  {
    const TrustedCertificate trusted(anothers);
    m_said.clear();
    EXPECT_FALSE(finds(*host(url(other_port)), 1));
    EXPECT_THAT(m_said.at(0), HasSubstr("127.0.0.1")) << "whose certificate is another server's";
  }
  const TrustedCertificate trusted(its_own);
  const auto tier = host(url(port));
  write(*tier, {entry_of(1, 200'000), entry_of(2)});
  EXPECT_EQ(find(*host(url(port)), {1, 2}).size(), 2U);
  EXPECT_TRUE(finds(*tier, 2));
}

TEST_F(RedisFleetTest, AFullStoreIsReadOn) {
  const RedisServer redis;
  const auto tier = host(redis.url());
  write(*tier, {entry_of(1)});
  redis.ask({"CONFIG", "SET", "maxmemory", "1"});
  tier->offer(entry_of(2));
  EXPECT_TRUE(wait_until([&] { return tier->counts().entries_dropped == 1; }));
  EXPECT_TRUE(finds(*tier, 1));
  EXPECT_FALSE(finds(*tier, 2));
}

TEST_F(RedisFleetTest, WhatAServerDropsMeanwhileIsAMissAndTheRestIsWhole) {
  const RedisServer redis({"--maxmemory", "6mb", "--maxmemory-policy", "allkeys-random"});
  const auto writer = host(redis.url()), reader = host(redis.url());
  constexpr uint64_t k_entries = 64;
  constexpr size_t k_size = 200'000;
  const auto is_whole = [&](uint64_t seed) {
    const auto found = find(*reader, {seed});
    EXPECT_TRUE(found.empty() || found[0].artifact == entry_of(seed, k_size).artifact) << seed;
    return !found.empty();
  };
  std::atomic<uint64_t> written{0};
  std::thread meanwhile([&] {
    for (uint64_t turn = 0; written < k_entries; ++turn) is_whole(turn % k_entries);
  });
  for (; written < k_entries; ++written) {
    elsewhere(*writer, {written});
    writer->offer(entry_of(written, k_size));
    EXPECT_TRUE(wait_until([&] { return !writer->is_writing(); }));
  }
  meanwhile.join();
  size_t kept = 0;
  for (uint64_t seed = 0; seed < k_entries; ++seed) kept += is_whole(seed);
  EXPECT_GT(kept, 0U);
  EXPECT_LT(kept, k_entries);
  EXPECT_EQ(reader->counts().entries_refused + reader->counts().searches_failed, 0U);
}

TEST_F(RedisFleetTest, APasswordComesFromAFileThatNobodyElseReads) {
  const RedisServer redis({"--requirepass", "open sesame"});
  const auto locked_out = host(redis.url() + "/3");
  EXPECT_FALSE(finds(*locked_out, 1));
  EXPECT_THAT(m_said.at(0), HasSubstr("NOAUTH"));
  m_password_file = m_directory.path("password");
  std::ofstream(m_password_file) << "open sesame\n";
  fs::permissions(m_password_file, fs::perms::owner_read);
  const auto tier = host(redis.url() + "/3");
  write(*tier, {entry_of(1)});
  EXPECT_TRUE(finds(*tier, 1));
  fs::permissions(m_password_file, fs::perms::group_read, fs::perm_options::add);
  const FleetSettings readable{{redis.url(), m_password_file}, "", "", ""};
  EXPECT_EQ(FleetTier::open(readable, {}).status().code(), StatusCode::permission_denied);
}

}  // namespace
}  // namespace kiln::testing
