#include "tests/cache/servers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

namespace kiln::testing {
namespace {

constexpr int k_starts = 2'000;
// Below the ports that the system gives to connections, of servers' among themselves, too.
constexpr uint32_t k_first_port = 12'000;
// How far beyond a server's port the one is where it talks to others of its cluster. Servers' ports are as many, so that none
// is such a one.
constexpr uint32_t k_cluster_offset = 10'000;

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

UniqueFd listener(uint16_t& port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  port = ntohs(address.sin_port);
  return fd;
}

bool is_free(uint16_t port) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  return bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

bool answers(uint16_t port) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::vector<std::string> redis_arguments(std::vector<std::string> settings, uint16_t port) {
  std::vector<std::string> arguments = {"redis-server",       "--bind",     "127.0.0.1", "--save", "", "--port",
                                        std::to_string(port), "--loglevel", "warning"};
  arguments.insert(arguments.end(), settings.begin(), settings.end());
  return arguments;
}

/// Writes nginx' configuration, and gives its arguments.
std::vector<std::string> nginx_arguments(const std::string& folder, const std::string& settings,
                                         const std::string& listening, uint16_t port) {
  std::filesystem::create_directories(folder + "/files");
  std::ofstream file(folder + "/nginx.conf");
  file << "daemon off; master_process off; pid " << folder << "/pid; error_log " << folder
       << "/log;\nevents {}\nhttp { access_log off; client_max_body_size 8m;\n";
  for (const char* what : {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"}) {
    file << what << "_temp_path " << folder << "/" << what << ";\n";
  }
  file << "server { listen 127.0.0.1:" << port << listening << "; root " << folder
       << "/files; location / { dav_methods PUT; " << settings << " } } }\n";
  return {"nginx", "-p", folder, "-c", folder + "/nginx.conf", "-e", folder + "/log"};
}

}  // namespace

uint16_t free_port() {
  static std::atomic<uint32_t> next{std::random_device()()};  // programs that run beside this one have others
  for (;;) {
    const auto port = static_cast<uint16_t>(k_first_port + next++ % k_cluster_offset);
    if (is_free(port) && is_free(static_cast<uint16_t>(port + k_cluster_offset))) return port;
  }
}

bool has_program(const std::string& name) {
  return std::system(("PATH=$PATH:/usr/sbin command -v " + name + " > /dev/null").c_str()) == 0;
}

ServerCertificate::ServerCertificate(const std::string& folder, const std::string& names)
    : file(folder + "/certificate"), key_file(folder + "/key") {
  std::filesystem::create_directories(folder);
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=kiln -days 2 -addext "
      "subjectAltName=" +
      names + " -out " + file + " -keyout " + key_file + " 2> /dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

std::vector<std::string> ServerCertificate::redis_settings(uint16_t tls_port) const {
  return {"--tls-port",         std::to_string(tls_port),
          "--tls-cert-file",    file,
          "--tls-key-file",     key_file,
          "--tls-ca-cert-file", file,
          "--tls-auth-clients", "no"};
}

ServerProcess::ServerProcess(std::vector<std::string> arguments, uint16_t port) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  m_pid = fork();
  if (m_pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("PATH", (std::string(getenv("PATH")) + ":/usr/sbin").c_str(), 1);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  for (int i = 0; i < k_starts && !answers(port); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void ServerProcess::kill() {
  if (m_pid < 0) return;
  ::kill(m_pid, SIGKILL);
  waitpid(m_pid, nullptr, 0);
  m_pid = -1;
}

RedisServer::RedisServer(std::vector<std::string> settings, uint16_t port)
    : m_port(port), m_process(redis_arguments(std::move(settings), port), port) {}

std::string RedisServer::ask(const std::vector<std::string>& words) const {
  const std::unique_ptr<redisContext, decltype(&redisFree)> context(redisConnect("127.0.0.1", m_port), redisFree);
  std::vector<const char*> arguments;
  std::vector<size_t> lengths;
  for (const std::string& word : words) {
    arguments.push_back(word.data());
    lengths.push_back(word.size());
  }
  auto* reply = static_cast<redisReply*>(
      redisCommandArgv(context.get(), static_cast<int>(words.size()), arguments.data(), lengths.data()));
  if (reply == nullptr) return "";
  std::string text = reply->str == nullptr ? "" : std::string(reply->str, reply->len);
  if (reply->type == REDIS_REPLY_INTEGER) text = std::to_string(reply->integer);
  freeReplyObject(reply);
  return text;
}

namespace {

constexpr size_t k_slots = 16'384;

/// The first slot of a server's third, or what is beyond the last one's.
size_t first_slot(size_t server) { return server * k_slots / RedisClusterServers::k_count; }

}  // namespace

RedisClusterServers::RedisClusterServers(const std::string& folder, const ServerCertificate* certificate) {
  for (size_t i = 0; i < k_count; ++i) {
    const std::string own = folder + "/" + std::to_string(i);
    std::filesystem::create_directories(own);
    const uint16_t port = free_port();
    std::vector<std::string> settings = {
        "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--dir", own};
    if (certificate != nullptr) {
      m_tls_ports.push_back(free_port());
      const auto more = certificate->redis_settings(m_tls_ports[i]);
      settings.insert(settings.end(), more.begin(), more.end());
      settings.insert(settings.end(), {"--tls-cluster", "yes"});
    }
    m_servers.push_back(std::make_unique<RedisServer>(settings, port));
    m_servers[i]->ask({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
    m_servers[i]->ask(
        {"CLUSTER", "ADDSLOTSRANGE", std::to_string(first_slot(i)), std::to_string(first_slot(i + 1) - 1)});
    const uint16_t first = certificate != nullptr ? m_tls_ports[0] : m_servers[0]->port();
    m_servers[i]->ask({"CLUSTER", "MEET", "127.0.0.1", std::to_string(first)});
  }
  for (const auto& server : m_servers) {
    const auto knows_all = [&] {
      const std::string info = server->ask({"CLUSTER", "INFO"});
      return info.find("cluster_state:ok") != std::string::npos &&
             info.find("cluster_slots_ok:16384") != std::string::npos;
    };
    for (int i = 0; i < k_starts && !knows_all(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

size_t RedisClusterServers::owner_of(uint16_t slot) const {
  size_t owner = 0;
  while (slot >= first_slot(owner + 1)) ++owner;
  return owner;
}

Nginx::Nginx(const std::string& folder, const std::string& settings, const std::string& listening)
    : m_folder(folder), m_port(free_port()), m_process(nginx_arguments(folder, settings, listening, m_port), m_port) {}

S3Server::S3Server(const std::string& key_file)
    : m_process({"env", std::string("PYTHONPATH=") + KILN_MOTO, KILN_PYTHON, KILN_S3_SERVER, std::to_string(m_port),
                 key_file},
                m_port) {}

bool S3Server::can_run() { return std::filesystem::exists(KILN_MOTO "/moto"); }

Peer::Peer(std::function<void(int socket)> serve) : m_listener(listener(m_port)) {
  EXPECT_EQ(listen(m_listener.get(), 16), 0);
  EXPECT_NE(m_port, 0);
  m_thread = std::thread([this, serve = std::move(serve)] {
    while (!m_is_over) {
      pollfd ready{m_listener.get(), POLLIN, 0};
      if (poll(&ready, 1, 20) <= 0) continue;
      const UniqueFd socket(accept4(m_listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket) continue;
      m_was_asked = true;
      serve(socket.get());
    }
  });
}

Peer::~Peer() {
  m_is_over = true;
  m_thread.join();
  EXPECT_TRUE(m_was_asked);
}

}  // namespace kiln::testing
