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

#include <chrono>
#include <cstdlib>
#include <memory>

namespace kiln::testing {
namespace {

constexpr int k_starts = 2'000;

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

}  // namespace

uint16_t free_port() {
  uint16_t port = 0;
  const UniqueFd fd = listener(port);
  return port;
}

bool has_program(const std::string& name) {
  return std::system(("PATH=$PATH:/usr/sbin command -v " + name + " > /dev/null").c_str()) == 0;
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

Peer::Peer(std::function<void(int socket)> serve) : m_listener(listener(m_port)) {
  EXPECT_EQ(listen(m_listener.get(), 16), 0);
  EXPECT_NE(m_port, 0);
  m_thread = std::thread([this, serve = std::move(serve)] {
    while (!m_is_over) {
      pollfd ready{m_listener.get(), POLLIN, 0};
      if (poll(&ready, 1, 20) <= 0) continue;
      const UniqueFd socket(accept4(m_listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket) serve(socket.get());
    }
  });
}

Peer::~Peer() {
  m_is_over = true;
  m_thread.join();
}

}  // namespace kiln::testing
