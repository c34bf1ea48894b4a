#include "service/listening_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kiln {
namespace {

constexpr int k_backlog = 4'096;

bool is_same_file(const struct stat& one, const struct stat& other) {
  return one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

Status unavailable(const std::string& path) {
  return error(StatusCode::unavailable, "socket {}: {}", path, std::strerror(errno));
}

}  // namespace

Expected<ListeningSocket> ListeningSocket::bind(const std::string& path) {
  sockaddr_un address{};
  if (path.size() >= sizeof address.sun_path) return error(StatusCode::unavailable, "socket {}: too long", path);
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  unlink(path.c_str());  // a dead daemon's: the instance lock says that no living one has it
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const mode_t before = umask(0177);  // 0600 from its first moment
  const bool is_bound =
      socket && ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  umask(before);
  struct stat file{};
  if (!is_bound || listen(socket.get(), k_backlog) != 0 || lstat(path.c_str(), &file) != 0) return unavailable(path);
  return ListeningSocket(std::move(socket), path, file, true);
}

Expected<ListeningSocket> ListeningSocket::adopt(UniqueFd socket, const std::string& path) {
  sockaddr_un address{};
  socklen_t length = sizeof address - 1;  // a path ends with a zero
  const bool is_local =
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0 && address.sun_family == AF_UNIX;
  struct stat named{}, wanted{};
  if (!is_local || stat(address.sun_path, &named) != 0 || lstat(path.c_str(), &wanted) != 0 ||
      !is_same_file(named, wanted)) {
    return error(
        StatusCode::failed_precondition,
        "the socket that was handed over is at '{}', clients look at {}; its unit's ListenStream has to name it",
        is_local ? address.sun_path : "", path);
  }
  if (listen(socket.get(), k_backlog) != 0) return unavailable(path);
  return ListeningSocket(std::move(socket), path, wanted, false);
}

void ListeningSocket::remove_name() const {
  struct stat there{};
  if (m_is_ours && lstat(m_path.c_str(), &there) == 0 && is_same_file(there, m_file)) unlink(m_path.c_str());
}

}  // namespace kiln
