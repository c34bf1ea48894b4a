// A fleet's store in a cluster of Redis: three masters, slots that move, servers that go, and one that sends us round.

#include <sys/socket.h>

#include "cache/fleet/redis_cluster.h"
#include "tests/cache/fleet_testing.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

TEST(RedisSlot, IsTheOneOfRedis) {
  EXPECT_EQ(redis_slot("123456789"), 0x31c3U);  // the check value of CRC16/XMODEM
  EXPECT_EQ(redis_slot("foo"), 12'182U);
  EXPECT_EQ(redis_slot("{foo}.bar"), 12'182U);
  EXPECT_NE(redis_slot("{}foo"), 12'182U);
}

class RedisClusterTest : public FleetTest {
 protected:
  void SetUp() override {
    if (!has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
    FleetTest::SetUp();
    m_cluster = std::make_unique<RedisClusterServers>(m_directory.path("cluster"));
  }
  size_t owner_of(uint64_t seed) const { return m_cluster->owner_of(redis_slot(name_of(seed))); }
  /// The first seed from there on whose entry a server has.
  uint64_t seed_of(size_t owner, uint64_t from = 0) const {
    while (owner_of(from) != owner) ++from;
    return from;
  }

  std::unique_ptr<RedisClusterServers> m_cluster;
};

TEST_F(RedisClusterTest, EntriesAndLeasesAreSpreadByTheirSlots) {
  std::vector<SourceEntry> entries;
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    entries.push_back(entry_of(seed));
    seeds.push_back(seed);
  }
  write(*host(m_cluster->at(0).url()), entries);
  std::vector<size_t> expected(RedisClusterServers::k_count);
  for (const uint64_t seed : seeds) ++expected[owner_of(seed)];
  for (size_t i = 0; i < RedisClusterServers::k_count; ++i) {
    EXPECT_EQ(m_cluster->at(i).ask({"DBSIZE"}), std::to_string(expected[i]));
    EXPECT_EQ(find(*host(m_cluster->at(i).url()), seeds).size(), entries.size());
  }

  const auto first = host(m_cluster->at(0).url()), second = host(m_cluster->at(2).url());
  std::vector<Digest> keys;
  for (uint64_t seed = 100; seed < 120; ++seed) keys.push_back(entry_of(seed).key);
  Patience patience{std::chrono::milliseconds(k_patience_ms)};
  EXPECT_TRUE(first->lease(keys, patience).empty());
  EXPECT_EQ(second->lease(keys, patience), keys);

  for (size_t i = 0; i < RedisClusterServers::k_count; ++i)
    m_cluster->at(i).ask({"CONFIG", "SET", "requirepass", "sesame"});
  EXPECT_TRUE(find(*host(m_cluster->at(0).url()), seeds).empty());
  m_password_file = m_directory.path("password");
  std::ofstream(m_password_file) << "sesame\n";
  fs::permissions(m_password_file, fs::perms::owner_read);
  EXPECT_EQ(find(*host(m_cluster->at(1).url()), seeds).size(), entries.size());
}

TEST_F(RedisClusterTest, SlotsThatMoveAreFollowed) {
  const auto tier = host(m_cluster->at(0).url());
  const uint64_t seed = seed_of(0);
  write(*tier, {entry_of(seed)});
  EXPECT_TRUE(finds(*tier, seed));
  const std::string slot = std::to_string(redis_slot(name_of(seed)));
  RedisServer &from = m_cluster->at(0), &to = m_cluster->at(1);
  const std::string from_id = from.ask({"CLUSTER", "MYID"}), to_id = to.ask({"CLUSTER", "MYID"});
  to.ask({"CLUSTER", "SETSLOT", slot, "IMPORTING", from_id});
  from.ask({"CLUSTER", "SETSLOT", slot, "MIGRATING", to_id});
  EXPECT_EQ(from.ask({"MIGRATE", "127.0.0.1", std::to_string(to.port()), name_of(seed), "0", "5000"}), "OK");
  EXPECT_TRUE(finds(*tier, seed)) << "asked of the one to which the slot is on its way";
  to.ask({"CLUSTER", "SETSLOT", slot, "NODE", to_id});
  from.ask({"CLUSTER", "SETSLOT", slot, "NODE", to_id});
  EXPECT_TRUE(finds(*tier, seed)) << "asked of the one that has it now";
  EXPECT_EQ(tier->counts().searches_failed, 0U);
}

TEST_F(RedisClusterTest, WhatOtherServersHaveIsFoundOnceOneIsGone) {
  const auto tier = host(m_cluster->at(0).url());
  const uint64_t gone = seed_of(0), there = seed_of(1), other = seed_of(2);
  write(*tier, {entry_of(gone), entry_of(there), entry_of(other)});
  EXPECT_EQ(find(*tier, {gone, there, other}).size(), 3U);
  m_cluster->at(0).kill();  // which was asked first
  EXPECT_FALSE(finds(*tier, gone));
  EXPECT_EQ(tier->counts().searches_failed, 1U);
  EXPECT_TRUE(wait_until([&] { return find(*tier, {there, other}).size() == 2; }));
}

TEST_F(FleetTest, EachServerOfAClusterIsTalkedToInsideTls) {
  if (!has_program("redis-server") || !has_program("openssl"))
    GTEST_SKIP() << "there is no redis-server, or no openssl";
  const ServerCertificate certificate(m_directory.path("certificates"), "IP:127.0.0.1");
  RedisClusterServers cluster(m_directory.path("cluster"), &certificate);
  const TrustedCertificate trusted(certificate);
  std::vector<SourceEntry> entries;
  std::vector<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    entries.push_back(entry_of(seed));
    seeds.push_back(seed);
  }
  write(*host(cluster.tls_url(0)), entries);
  for (size_t i = 0; i < RedisClusterServers::k_count; ++i) {
    EXPECT_NE(cluster.at(i).ask({"DBSIZE"}), "0");
    EXPECT_EQ(find(*host(cluster.tls_url(i)), seeds).size(), entries.size());
  }
}

TEST_F(FleetTest, AServerOfRedisThatSendsUsRoundInCirclesIsLeftAlone) {
  uint16_t port = 0;
  const Peer liar([&](int socket) {
    const std::string answer = "-MOVED 1 127.0.0.1:" + std::to_string(port) + "\r\n";
    char asked[4096];
    while (recv(socket, asked, sizeof asked, 0) > 0) send(socket, answer.data(), answer.size(), MSG_NOSIGNAL);
  });
  port = liar.port();
  const auto tier = host("redis://127.0.0.1:" + std::to_string(port));
  EXPECT_FALSE(finds(*tier, 1));
  EXPECT_THAT(m_said.at(0), HasSubstr("in circles"));
}

}  // namespace
}  // namespace kiln::testing
