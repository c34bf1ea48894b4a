// kilnd as systemd starts it: with a socket that listens already, and somebody who wants to know when it serves.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "client/connection/connection.h"

namespace kiln {
namespace {

constexpr uint64_t k_patience_ms = 60'000;

UniqueFd bound_socket(const std::string& path, int type) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  EXPECT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
  return socket;
}

class SupervisorTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/kiln-supervisor-XXXXXX";
    m_directory = mkdtemp(name);
    m_config.cache_directory = m_directory + "/cache";
    m_config.daemon_path = "/nonexistent";  // nobody but the supervisor starts one
    std::filesystem::create_directory(m_config.cache_directory);
    chmod(m_config.cache_directory.c_str(), 0700);
  }
  void TearDown() override {
    if (m_pid > 0) kill(m_pid, SIGKILL), waitpid(m_pid, nullptr, 0);
    std::filesystem::remove_all(m_directory);
  }

  std::string socket_path() const { return m_config.cache_directory + "/kilnd.sock"; }

  /// What systemd does between fork and exec. `count`: how many sockets it says there are.
  void start(int listener, const std::string& notify_path, const char* count = "1") {
    m_pid = fork();
    ASSERT_GE(m_pid, 0);
    if (m_pid > 0) return;
    if (dup2(listener, 3) == listener) fcntl(3, F_SETFD, 0);
    setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
    setenv("LISTEN_FDS", count, 1);
    setenv("NOTIFY_SOCKET", notify_path.c_str(), 1);
    setenv("XDG_STATE_HOME", (m_directory + "/state").c_str(), 1);
    const std::string cache = "cache.directory=" + m_config.cache_directory;
    execl(KILN_KILND, KILN_KILND, "--set", cache.c_str(), "--set", "worker.path=" KILN_FAKE_WORKER, nullptr);
    _exit(127);
  }

  int exit_status() {
    int status = -1;
    waitpid(std::exchange(m_pid, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }

  std::string m_directory;
  Config m_config;
  pid_t m_pid = -1;
};

TEST_F(SupervisorTest, it_serves_at_the_socket_that_it_is_handed_and_says_when) {
  const UniqueFd notified = bound_socket(m_directory + "/notify", SOCK_DGRAM);
  const UniqueFd listener = bound_socket(socket_path(), SOCK_STREAM);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  start(listener.get(), m_directory + "/notify");
  ASSERT_TRUE(wait_for(notified.get(), POLLIN, deadline_in(k_patience_ms)).ok());
  char words[64] = {};
  ASSERT_GT(recv(notified.get(), words, sizeof words - 1, 0), 0);
  EXPECT_STREQ(words, "READY=1");

  Connection connection(m_config);
  const auto status = connection.command({.verb = protocol::Verb::status}, deadline_in(k_patience_ms));
  ASSERT_TRUE(status.ok()) << status.status().to_string();
  EXPECT_NE(status->find("\"pid\":" + std::to_string(m_pid)), std::string::npos) << *status;

  ASSERT_TRUE(connection.command({.verb = protocol::Verb::shutdown}, deadline_in(k_patience_ms)).ok());
  EXPECT_EQ(exit_status(), 0);
  EXPECT_TRUE(std::filesystem::is_socket(socket_path())) << "the supervisor listens on";
}

TEST_F(SupervisorTest, a_client_that_came_before_the_daemon_is_served) {
  const UniqueFd listener = bound_socket(socket_path(), SOCK_STREAM);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  UniqueFd early(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path().c_str(), socket_path().size() + 1);
  ASSERT_EQ(connect(early.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  start(listener.get(), "");
  uint8_t greeting[8];
  EXPECT_TRUE(receive_some(early.get(), greeting, deadline_in(k_patience_ms)).ok());
}

TEST_F(SupervisorTest, a_socket_where_no_client_looks_is_refused) {
  const UniqueFd listener = bound_socket(m_directory + "/elsewhere", SOCK_STREAM);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  start(listener.get(), "");
  EXPECT_EQ(exit_status(), 1);
  EXPECT_FALSE(std::filesystem::exists(socket_path()));
}

TEST_F(SupervisorTest, other_than_one_socket_is_refused) {
  const UniqueFd listener = bound_socket(socket_path(), SOCK_STREAM);
  start(listener.get(), "", "2");
  EXPECT_EQ(exit_status(), 1);
}

}  // namespace
}  // namespace kiln
