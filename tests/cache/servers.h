#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"

/// Servers on loopback for tests of a fleet's store: real ones, and peers that do as a test says.
namespace kiln::testing {

/// A port that was free a moment ago, and the one 10,000 beyond it, where a cluster of Redis talks. Each call gives another.
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

/// Files with a certificate that vouches for itself, and its key. What `names` it is of is as of OpenSSL's subjectAltName:
/// IP:127.0.0.1.
struct ServerCertificate {
  ServerCertificate(const std::string& folder, const std::string& names);
  /// Settings of a redis-server that shows it to all who come to this port.
  std::vector<std::string> redis_settings(uint16_t tls_port) const;

  std::string file, key_file;
};

/// Whoever connects meanwhile believes servers that this certificate vouches for, and no others.
class TrustedCertificate {
 public:
  explicit TrustedCertificate(const ServerCertificate& certificate) {
    if (const char* value = std::getenv(k_name)) m_before = value;
    setenv(k_name, certificate.file.c_str(), 1);
  }
  ~TrustedCertificate() { m_before.empty() ? unsetenv(k_name) : setenv(k_name, m_before.c_str(), 1); }
  TrustedCertificate(const TrustedCertificate&) = delete;
  TrustedCertificate& operator=(const TrustedCertificate&) = delete;

 private:
  static constexpr const char* k_name = "CURL_CA_BUNDLE";
  std::string m_before;
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

/// Three masters of a cluster of Redis, each with a third of the slots.
class RedisClusterServers {
 public:
  /// `folder`: for what they remember. With a certificate they talk TLS, among themselves, too, beside what RedisServer talks.
  explicit RedisClusterServers(const std::string& folder, const ServerCertificate* certificate = nullptr);

  RedisServer& at(size_t index) { return *m_servers[index]; }
  std::string tls_url(size_t index) const { return "rediss://127.0.0.1:" + std::to_string(m_tls_ports[index]); }
  /// Whose slot it is, as it was at the start.
  size_t owner_of(uint16_t slot) const;
  static constexpr size_t k_count = 3;

 private:
  std::vector<std::unique_ptr<RedisServer>> m_servers;
  std::vector<uint16_t> m_tls_ports;
};

/// nginx with a folder that it serves, and that others may write to.
class Nginx {
 public:
  /// `settings` are of the folder, `listening` of the server: " ssl" and its certificates.
  explicit Nginx(const std::string& folder, const std::string& settings = "", const std::string& listening = "");

  uint16_t port() const { return m_port; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(m_port); }
  std::string file(const std::string& name) const { return m_folder + "/files/" + name; }
  void kill() { m_process.kill(); }

 private:
  std::string m_folder;
  uint16_t m_port;
  ServerProcess m_process;
};

/// moto's S3 server, which checks signatures, with a bucket "kiln" and a file with a key for it.
class S3Server {
 public:
  explicit S3Server(const std::string& key_file);

  /// Whether moto is installed where the tests' tools install it.
  static bool can_run();
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(m_port); }
  void kill() { m_process.kill(); }

 private:
  uint16_t m_port = free_port();
  ServerProcess m_process;
};

/// Accepts connections, one after the other, and does with each what a test says. What it does ends when the peer hangs up.
/// One that nobody asked proves nothing, and fails the test.
class Peer {
 public:
  explicit Peer(std::function<void(int socket)> serve);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  uint16_t port() const { return m_port; }

 private:
  uint16_t m_port = 0;  // set by what makes the listener, so it is before that
  UniqueFd m_listener;
  std::atomic<bool> m_is_over = false, m_was_asked = false;
  std::thread m_thread;
};

}  // namespace kiln::testing
