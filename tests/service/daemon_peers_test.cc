// Peers that misbehave.

#include "base/limits.h"
#include "tests/service/daemon_testing.h"

namespace kiln {
namespace {

TEST_F(DaemonTest, another_user_is_refused_before_a_byte_is_read) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  ASSERT_TRUE(build("ok").ok());
  struct stat info{};
  ASSERT_EQ(stat(socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  ASSERT_EQ(stat(m_config.cache_directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  // Open the doors that the file system keeps shut, to stand before the daemon itself.
  for (const std::string& path : {m_directory, m_config.cache_directory}) chmod(path.c_str(), 0711);
  chmod(socket().c_str(), 0666);
  const std::string path = socket();
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) _exit(3);
    const auto messages = read_to_end(fd.get());
    const auto* failure = messages.size() == 1 ? std::get_if<protocol::Failure>(&messages[0]) : nullptr;
    _exit(failure != nullptr && failure->status.code() == StatusCode::permission_denied ? 0 : 4);
  }
  int status = 1;
  waitpid(stranger, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(number_in(ask(Verb::stats), "refused_peers"), 1);
}

TEST_F(DaemonTest, malformed_bytes_end_their_connection_and_no_other) {
  ASSERT_TRUE(build("ok").ok());
  const auto hello = protocol::encode(protocol::Hello{protocol::k_protocol_version, "test", 1});
  const std::vector<std::vector<uint8_t>> attacks = {
      std::vector<uint8_t>(100, 0xff),
      encode_frame(77, {}),
      encode_frame(1, std::vector<uint8_t>(50, 0xee)),
      protocol::encode(protocol::Built{1}),
  };
  for (const bool greeted : {false, true}) {
    for (const auto& attack : attacks) {
      const UniqueFd fd = raw();
      if (greeted) {
        ASSERT_TRUE(send_all(fd.get(), hello, deadline_in(1'000)).ok());
      }
      ASSERT_TRUE(send_all(fd.get(), attack, deadline_in(1'000)).ok());
      const auto messages = read_to_end(fd.get());
      ASSERT_EQ(messages.size(), 2U);  // its greeting, and why not
      EXPECT_TRUE(std::holds_alternative<protocol::Failure>(messages[1]));
    }
  }
  EXPECT_TRUE(build("ok after").ok());
}

TEST_F(DaemonTest, another_protocol_version_is_told_so) {
  ASSERT_TRUE(build("ok").ok());
  const UniqueFd fd = raw();
  ASSERT_TRUE(send_all(fd.get(), protocol::encode(protocol::Hello{99, "new", 1}), deadline_in(1'000)).ok());
  const auto messages = read_to_end(fd.get());
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(std::get<protocol::Failure>(messages[1]).status.code(), StatusCode::failed_precondition);
}

TEST_F(DaemonTest, a_half_closed_client_gets_its_answer) {
  ASSERT_TRUE(build("ok").ok());
  const UniqueFd fd = raw();
  auto request = graph("slow half");
  request.id = 1;
  ASSERT_TRUE(send_all(fd.get(), protocol::encode(protocol::Hello{}), deadline_in(1'000)).ok());
  ASSERT_TRUE(send_all(fd.get(), protocol::encode(request), deadline_in(1'000)).ok());
  shutdown(fd.get(), SHUT_WR);
  const auto messages = read_to_end(fd.get());
  ASSERT_FALSE(messages.empty());
  EXPECT_TRUE(std::holds_alternative<protocol::Built>(messages.back()));
}

TEST_F(DaemonTest, a_client_that_sends_byte_by_byte_and_one_that_says_nothing_block_nobody) {
  ASSERT_TRUE(build("ok").ok());
  const UniqueFd silent = raw();
  const UniqueFd slow = raw();
  auto request = Command{1, Verb::stats, {}, "", {}};
  auto bytes = protocol::encode(protocol::Hello{});
  const auto more = protocol::encode(request);
  bytes.insert(bytes.end(), more.begin(), more.end());
  for (const uint8_t byte : bytes) {
    ASSERT_TRUE(send_all(slow.get(), {&byte, 1}, deadline_in(1'000)).ok());
    if (&byte == &bytes[bytes.size() / 2]) {
      EXPECT_TRUE(build("ok meanwhile").ok());
    }
  }
  shutdown(slow.get(), SHUT_WR);
  const auto messages = read_to_end(slow.get());
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<protocol::Answer>(messages[1]));
}

TEST_F(DaemonTest, a_frame_has_a_time_of_its_own_though_it_began_with_the_greeting) {
  ASSERT_TRUE(build("ok").ok());
  const UniqueFd slow = raw();
  auto bytes = protocol::encode(protocol::Hello{});
  const auto request = protocol::encode(Command{1, Verb::stats, {}, "", {}});
  bytes.insert(bytes.end(), request.begin(), request.end());
  const std::span<const uint8_t> all(bytes);
  ASSERT_TRUE(send_all(slow.get(), all.first(all.size() - 1), deadline_in(1'000)).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(limits::k_greeting_timeout_ms + 500));
  ASSERT_TRUE(send_all(slow.get(), all.last(1), deadline_in(1'000)).ok());
  shutdown(slow.get(), SHUT_WR);
  const auto messages = read_to_end(slow.get());
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<protocol::Answer>(messages[1]));
}

TEST_F(DaemonTest, connections_beyond_the_limit_are_refused_and_closed_ones_make_room) {
  ASSERT_TRUE(build("ok").ok());
  for (int round = 0; round < 200; ++round) {
    const UniqueFd fd = raw();  // and away
  }
  EXPECT_TRUE(wait_until([&] { return number_in(ask(Verb::status), "connections") == 1; }));
}

}  // namespace
}  // namespace kiln
