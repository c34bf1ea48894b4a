// A fleet's store on a web server: nginx with WebDAV, and peers that are none.

#include <sys/socket.h>

#include <random>

#include "tests/cache/fleet_testing.h"

namespace kiln::testing {
namespace {

using ::testing::HasSubstr;

std::string bytes_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class HttpFleetTest : public FleetTest {
 protected:
  void SetUp() override {
    if (!has_program("nginx")) GTEST_SKIP() << "there is no nginx";
    FleetTest::SetUp();
  }
};

TEST_F(HttpFleetTest, WhatOneHostBuiltAnotherOneFinds) {
  const Nginx nginx(m_directory.path("nginx"));
  std::vector<SourceEntry> entries;
  std::vector<uint64_t> seeds = {999};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    entries.push_back(entry_of(seed, plan_size(seed), 3));
    seeds.push_back(seed);
  }
  write(*host(nginx.url()), entries);
  const auto found = find(*host(nginx.url() + "/", "ours", false), seeds);
  ASSERT_EQ(found.size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) EXPECT_EQ(found[i].artifact, entries[i].artifact);
}

TEST_F(HttpFleetTest, TheFirstEntryOfAKeyStaysUntilALaterGenerationComes) {
  const Nginx nginx(m_directory.path("nginx"));
  write(*host(nginx.url()), {entry_of(1, 300)});
  const std::string first = bytes_in(nginx.file(name_of(1)));
  EXPECT_FALSE(first.empty());
  write(*host(nginx.url()), {entry_of(1, 500)});
  EXPECT_EQ(bytes_in(nginx.file(name_of(1))), first);
  write(*host(nginx.url()), {entry_of(1, 500, 1)});
  EXPECT_NE(bytes_in(nginx.file(name_of(1))), first);
}

TEST_F(HttpFleetTest, AServerThatLiesIsNotBelievedAndWhatItHasIsReplaced) {
  const Nginx nginx(m_directory.path("nginx"));
  const auto tier = host(nginx.url());
  write(*tier, {entry_of(1), entry_of(2)});
  const std::string good = bytes_in(nginx.file(name_of(1)));
  for (const std::string& lie :
       {good.substr(0, good.size() / 2), std::string(100, 'x'), bytes_in(nginx.file(name_of(2)))}) {
    std::ofstream(nginx.file(name_of(1)), std::ios::binary) << lie;
    EXPECT_FALSE(finds(*tier, 1));
  }
  write(*tier, {entry_of(1)});
  EXPECT_EQ(bytes_in(nginx.file(name_of(1))), good);
}

TEST_F(HttpFleetTest, AServerThatTakesNothingIsReadOn) {
  const std::string folder = m_directory.path("nginx");
  {
    write(*host(Nginx(folder).url()), {entry_of(1)});
  }
  for (const char* refusal : {"limit_except GET { deny all; }", "if ($request_method = PUT) { return 507; }"}) {
    const Nginx nginx(folder, refusal);
    const auto tier = host(nginx.url());
    tier->offer(entry_of(2));
    EXPECT_TRUE(wait_until([&] { return tier->counts().entries_dropped == 1; })) << refusal;
    EXPECT_TRUE(finds(*tier, 1));
  }
}

TEST_F(HttpFleetTest, OfAServerThatIsGoneHangsOrTalksNonsenseNothingIsFound) {
  Nginx nginx(m_directory.path("nginx"));
  const auto before = host(nginx.url());
  write(*before, {entry_of(1)});
  nginx.kill();
  EXPECT_FALSE(finds(*before, 1));
  EXPECT_EQ(before->counts().searches_failed, 1U);

  const std::string answers[] = {"",
                                 "+OK\r\n",
                                 "HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
                                 "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
                                 "HTTP/1.1 302 Elsewhere\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"};
  for (const std::string& answer : answers) {
    const Peer liar([&](int socket) {
      char asked[4096];
      if (recv(socket, asked, sizeof asked, 0) <= 0) return;
      send(socket, answer.data(), answer.size(), MSG_NOSIGNAL);
    });
    EXPECT_FALSE(finds(*host("http://127.0.0.1:" + std::to_string(liar.port())), 1)) << answer;
  }
  const Peer silent([](int socket) {
    char asked[4096];
    while (recv(socket, asked, sizeof asked, 0) > 0) {
    }
  });
  const auto tier = host("http://127.0.0.1:" + std::to_string(silent.port()));
  const Digest key = entry_of(1).key;
  Patience patience{std::chrono::milliseconds(50)};
  EXPECT_TRUE(tier->find({&key, 1}, ArtifactKind::plan, patience).empty());
  EXPECT_EQ(tier->counts().searches_failed, 1U);
}

TEST_F(HttpFleetTest, OverTlsAServerIsAskedForACertificateOfSomebodyWhoIsKnown) {
  if (!has_program("openssl")) GTEST_SKIP() << "there is no openssl";
  const ServerCertificate certificate(m_directory.path("certificates"), "IP:127.0.0.1");
  const Nginx nginx(m_directory.path("nginx"), "",
                    " ssl; ssl_certificate " + certificate.file + "; ssl_certificate_key " + certificate.key_file);
  const std::string url = "https://127.0.0.1:" + std::to_string(nginx.port());
  EXPECT_FALSE(finds(*host(url), 1));
  EXPECT_THAT(m_said.at(0), HasSubstr("SSL"));
  const TrustedCertificate trusted(certificate);
  const auto tier = host(url);
  write(*tier, {entry_of(1)});
  EXPECT_TRUE(finds(*tier, 1));
}

}  // namespace
}  // namespace kiln::testing
