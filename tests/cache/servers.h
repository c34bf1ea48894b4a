#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"

/// Servers on loopback for tests of a fleet's store: real ones, and peers that do as a test says.
namespace kiln::testing {

/// A port that was free a moment ago.
uint16_t free_port();

/// Whether a program of this name is in PATH or where Debian has servers.
bool has_program(const std::string& name);

/// A program that serves on a port, from its first accepted connection to its end.
class ServerProcess {
 public:
  ServerProcess(std::vector<std::string> arguments, uint16_t port);
  ~ServerProcess() { kill(); }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  /// Ends it at once.
  void kill();

 private:
  pid_t m_pid = -1;
};

/// redis-server with nothing on the disk.
class RedisServer {
 public:
  explicit RedisServer(std::vector<std::string> settings = {}, uint16_t port = free_port());

  std::string url() const { return "redis://127.0.0.1:" + std::to_string(m_port); }
  uint16_t port() const { return m_port; }
  /// What it answers to a command, as text; "" for nil.
  std::string ask(const std::vector<std::string>& words) const;
  void kill() { m_process.kill(); }

 private:
  uint16_t m_port;
  ServerProcess m_process;
};

/// Accepts connections, one after the other, and does with each what a test says. What it does ends when the peer hangs up.
class Peer {
 public:
  explicit Peer(std::function<void(int socket)> serve);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  uint16_t port() const { return m_port; }

 private:
  uint16_t m_port = 0;  // before the listener, which says what it is
  UniqueFd m_listener;
  std::atomic<bool> m_is_over = false;
  std::thread m_thread;
};

}  // namespace kiln::testing
