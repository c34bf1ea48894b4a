#pragma once

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "base/config/directories.h"
#include "client/connection/connection.h"
#include "client/connection/start_daemon.h"

namespace kiln {

using protocol::Build;
using protocol::Command;
using protocol::Verb;

// Generous: the machine that runs the tests may be busy, and sanitizers slow everything.
inline constexpr uint64_t k_patience_ms = 60'000;

inline Build graph(const std::string& text) { return {0, {text.begin(), text.end()}, {{"cpu", "x86-64-v3"}}}; }

/// The number after "name": in JSON.
inline int64_t number_in(const std::string& json, const std::string& name) {
  const size_t at = json.find("\"" + name + "\":");
  return at == std::string::npos ? -1 : std::stoll(json.substr(at + name.size() + 3));
}

/// The daemon as clients meet it: real processes and sockets, with a store and a compiler that do as told.
class DaemonTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/kiln-daemon-XXXXXX";
    m_directory = mkdtemp(name);
    std::filesystem::create_directories(m_directory + "/run");
    std::filesystem::create_directories(m_directory + "/cache");
    chmod((m_directory + "/cache").c_str(), 0700);
    setenv("XDG_RUNTIME_DIR", (m_directory + "/run").c_str(), 1);
    setenv("XDG_STATE_HOME", (m_directory + "/state").c_str(), 1);
    m_config.cache_directory = m_directory + "/cache";
    setenv("FAKE_WORKER_NOTES", m_config.cache_directory.c_str(), 1);
    m_config.daemon_path = KILN_FAKE_KILND;
    m_config.worker_path = KILN_FAKE_WORKER;
    m_config.worker_count = 4;
    m_config.daemon_start_timeout_ms = 20'000;
    m_config.worker_deadline_ms = 30'000;
    m_config.worker_memory_max_bytes = uint64_t{512} << 20;
  }

  void TearDown() override {
    Config config = m_config;
    Connection connection(config);
    (void)connection.command({.verb = Verb::shutdown}, deadline_in(5'000), false);
    wait_until([&] { return !daemon_runs(); });
    EXPECT_FALSE(daemon_runs());
    expect_no_last_words();
    std::filesystem::remove_all(m_directory);
  }

  /// Sanitizers and asserts speak on the detached daemon's stderr, which is a file.
  void expect_no_last_words() const {
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(m_directory + "/state/kiln", absent)) {
      if (entry.path().extension() != ".stderr") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      for (const char* complaint : {"Sanitizer", "runtime error", "Assertion"}) {
        EXPECT_EQ(text.str().find(complaint), std::string::npos) << text.str();
      }
    }
  }

  Expected<protocol::Built> build(const std::string& text, const Connection::ProgressCallback& progress = {}) {
    Connection connection(m_config);
    return connection.build(graph(text), deadline_in(k_patience_ms), progress);
  }

  std::string ask(Verb verb) {
    Connection connection(m_config);
    auto json = connection.command({.verb = verb}, deadline_in(k_patience_ms));
    EXPECT_TRUE(json.ok()) << json.status().to_string();
    return json.ok() ? *json : "";
  }

  std::vector<std::string> lines(const std::string& file) const {
    std::ifstream stream(m_config.cache_directory + "/" + file);
    std::vector<std::string> found;
    for (std::string line; std::getline(stream, line);) found.push_back(line);
    return found;
  }

  std::string socket() const { return *socket_path(m_config.cache_directory); }

  /// A raw connection, for what a Connection would never say.
  UniqueFd raw() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, socket().c_str());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
    return fd;
  }

  /// Everything the peer sends until it closes.
  static std::vector<protocol::Message> read_to_end(int fd) {
    std::vector<protocol::Message> messages;
    FrameReader reader(1 << 20);
    std::vector<uint8_t> buffer(1 << 16);
    for (;;) {
      auto got = receive_some(fd, buffer, deadline_in(k_patience_ms));
      if (!got.ok() || *got == 0) return messages;
      auto bytes = std::span<const uint8_t>(buffer).first(*got);
      while (!bytes.empty()) {
        bool whole = false;
        Frame frame;
        if (!reader.feed(bytes, whole, frame).ok()) return messages;
        if (whole) messages.push_back(protocol::decode(frame).value());
      }
    }
  }

  bool daemon_runs() const {
    const UniqueFd lock(open((m_config.cache_directory + "/kilnd.lock").c_str(), O_RDWR | O_CLOEXEC));
    return lock && flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
  }
  pid_t daemon_pid() { return static_cast<pid_t>(number_in(ask(Verb::status), "pid")); }

  template <typename Condition>
  static bool wait_until(const Condition& condition) {
    const Deadline deadline = deadline_in(k_patience_ms);
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  std::string m_directory;
  Config m_config;
};

}  // namespace kiln
