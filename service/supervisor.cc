#include "service/supervisor.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace kiln {
namespace {

constexpr int k_first_descriptor = 3;

std::string take_variable(const char* name) {
  const char* value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  unsetenv(name);
  return text;
}

}  // namespace

Expected<Supervisor> Supervisor::from_environment() {
  Supervisor supervisor;
  supervisor.m_address = take_variable("NOTIFY_SOCKET");
  const std::string for_whom = take_variable("LISTEN_PID"), count = take_variable("LISTEN_FDS");
  unsetenv("LISTEN_FDNAMES");
  if (for_whom != std::to_string(getpid())) return supervisor;
  if (count != "1" || fcntl(k_first_descriptor, F_SETFD, FD_CLOEXEC) != 0)
    return invalid_argument("'{}' sockets were handed over from descriptor 3 on (LISTEN_FDS), expected 1", count);
  supervisor.m_socket = UniqueFd(k_first_descriptor);
  return supervisor;
}

void Supervisor::tell_ready() const {
  sockaddr_un address{};
  if (m_address.empty() || m_address.size() >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, m_address.data(), m_address.size());
  if (m_address.front() == '@') address.sun_path[0] = '\0';  // an abstract name
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + m_address.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  constexpr std::string_view k_words = "READY=1";
  sendto(socket.get(), k_words.data(), k_words.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address),
         length);
}

}  // namespace kiln
