// A fleet's store in a bucket of S3: a server that checks signatures, and peers that are none.

#include <sys/socket.h>

#include <cstring>

#include "tests/cache/fleet_testing.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

class S3FleetTest : public FleetTest {
 protected:
  void SetUp() override {
    if (!S3Server::can_run()) GTEST_SKIP() << "there is no moto in build/vendor/s3";
    FleetTest::SetUp();
    m_password_file = m_directory.path("s3_key");
    m_server = std::make_unique<S3Server>(m_password_file);
  }

  std::string url(const std::string& bucket = "kiln/a+team") const {
    return "s3://" + bucket + "?region=eu-central-1&endpoint=" + m_server->endpoint();
  }
  /// Puts it there whatever was there before.
  void lie(uint64_t seed, const std::string& value) const {
    auto store = open_fleet_store({url(), m_password_file});
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(value.data()), value.size());
    EXPECT_TRUE((*store)->put(name_of(seed), bytes, true, deadline_in(k_patience_ms)).ok());
  }
  std::string value_of(uint64_t seed) const {
    auto store = open_fleet_store({url(), m_password_file});
    const std::string name = name_of(seed);
    const auto values = (*store)->get({&name, 1}, deadline_in(k_patience_ms));
    return values.ok() && values->at(0) ? std::string(values->at(0)->begin(), values->at(0)->end()) : "";
  }

  std::unique_ptr<S3Server> m_server;
};

TEST_F(S3FleetTest, WhatOneHostBuiltAnotherOneFindsAndTheFirstEntryStays) {
  std::vector<SourceEntry> entries;
  std::vector<uint64_t> seeds = {999};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    entries.push_back(entry_of(seed, plan_size(seed)));
    seeds.push_back(seed);
  }
  write(*host(url()), entries);
  const auto found = find(*host(url(), "ours", false), seeds);
  ASSERT_EQ(found.size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) EXPECT_EQ(found[i].artifact, entries[i].artifact);

  const std::string first = value_of(1);
  write(*host(url()), {entry_of(1, 5'000)});
  EXPECT_EQ(value_of(1), first);
  write(*host(url()), {entry_of(1, 5'000, 1)});
  EXPECT_NE(value_of(1), first);
}

TEST_F(S3FleetTest, AStoreThatLiesIsNotBelievedAndWhatItHasIsReplaced) {
  const auto tier = host(url());
  write(*tier, {entry_of(1), entry_of(2)});
  const std::string good = value_of(1);
  for (const std::string& value : {good.substr(0, good.size() / 2), std::string(100, 'x'), value_of(2)}) {
    lie(1, value);
    EXPECT_FALSE(finds(*tier, 1));
  }
  write(*tier, {entry_of(1)});
  EXPECT_EQ(value_of(1), good);
}

TEST_F(S3FleetTest, AWrongKeyAndABucketThatIsNotThereAreSaidAndTheSecretIsNot) {
  write(*host(url()), {entry_of(1)});
  const auto nowhere = host(url("elsewhere"));
  EXPECT_FALSE(finds(*nowhere, 1));
  nowhere->offer(entry_of(1));
  EXPECT_TRUE(wait_until([&] {
    const std::scoped_lock lock(m_mutex);
    return !m_said.empty();
  }));
  fs::permissions(m_password_file, fs::perms::owner_all);
  std::ofstream(m_password_file) << "AKIAIOSFODNN7EXAMPLE:a secret\n";
  const auto stranger = host(url());
  EXPECT_FALSE(finds(*stranger, 1));
  EXPECT_EQ(stranger->counts().searches_failed, 1U);
  const std::scoped_lock lock(m_mutex);
  EXPECT_THAT(m_said.back(), HasSubstr("HTTP 403"));
  for (const std::string& sentence : m_said) EXPECT_EQ(sentence.find("a secret"), std::string::npos) << sentence;
}

TEST_F(S3FleetTest, OfAServerThatIsGoneOrSlowOrFullNothingIsFound) {
  const auto before = host(url());
  write(*before, {entry_of(1)});
  m_server->kill();
  EXPECT_FALSE(finds(*before, 1));
  EXPECT_EQ(before->counts().searches_failed, 1U);

  const auto peer_url = [](const Peer& peer) {
    return "s3://kiln?endpoint=http://127.0.0.1:" + std::to_string(peer.port());
  };
  const Peer silent([](int socket) {
    char asked[4096];
    while (recv(socket, asked, sizeof asked, 0) > 0) {
    }
  });
  const auto waits = host(peer_url(silent));
  const Digest key = entry_of(1).key;
  Patience patience{std::chrono::milliseconds(50)};
  EXPECT_TRUE(waits->find({&key, 1}, ArtifactKind::plan, patience).empty());
  EXPECT_EQ(waits->counts().searches_failed, 1U);

  for (const char* answer :
       {"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"}) {
    const Peer peer([&](int socket) {
      char asked[4096];
      if (recv(socket, asked, sizeof asked, 0) > 0) send(socket, answer, strlen(answer), MSG_NOSIGNAL);
    });
    const auto tier = host(peer_url(peer));
    EXPECT_FALSE(finds(*tier, 1)) << answer;
    EXPECT_EQ(tier->counts().searches_failed, 1U);
  }
}

TEST_F(S3FleetTest, TheKeyMayBeInTheEnvironment) {
  std::string key;
  std::getline(std::ifstream(m_password_file), key);
  m_password_file.clear();
  EXPECT_EQ(open_fleet_store({url(), ""}).status().code(), StatusCode::not_found);
  setenv("AWS_ACCESS_KEY_ID", key.substr(0, key.find(':')).c_str(), 1);
  setenv("AWS_SECRET_ACCESS_KEY", key.substr(key.find(':') + 1).c_str(), 1);
  setenv("AWS_ENDPOINT_URL_S3", m_server->endpoint().c_str(), 1);
  setenv("AWS_REGION", "us-west-2", 1);
  const auto tier = host("s3://kiln/a");
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3", "AWS_REGION"})
    unsetenv(name);
  write(*tier, {entry_of(1)});
  EXPECT_TRUE(finds(*tier, 1));
}

}  // namespace
}  // namespace kiln::testing
