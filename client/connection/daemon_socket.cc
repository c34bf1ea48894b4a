#include "client/connection/daemon_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/limits.h"

namespace kiln {
namespace {

/// The time between two looks at whether somebody wants the wait to end.
constexpr auto k_slice = std::chrono::milliseconds(100);

Status check_interrupted(const Interrupted& interrupted) {
  if (interrupted && interrupted()) return {StatusCode::cancelled, "interrupted while waiting for the daemon"};
  return {};
}

/// wait(until) in slices, until it is over or somebody interrupts.
template <typename Wait>
auto in_slices(Deadline deadline, const Interrupted& interrupted, const Wait& wait) -> decltype(wait(deadline)) {
  for (;;) {
    auto result = wait(std::min(deadline, Clock::now() + k_slice));
    Status status;
    if constexpr (std::is_same_v<decltype(result), Status>) {
      status = result;
    } else if (!result.ok()) {
      status = result.status();
    }
    if (status.code() != StatusCode::deadline_exceeded || Clock::now() >= deadline) return result;
    KILN_RETURN_IF_ERROR(check_interrupted(interrupted));
  }
}

/// Who could have put a socket there: this user alone.
Status check_place(const std::string& path) {
  struct stat folder{};
  const std::string directory = path.substr(0, path.rfind('/'));
  if (lstat(directory.c_str(), &folder) != 0) return error(StatusCode::not_found, "nobody listens at {}", path);
  if (S_ISDIR(folder.st_mode) && folder.st_uid == geteuid() && (folder.st_mode & 022) == 0) return {};
  return error(StatusCode::permission_denied, "{} is of user {} and mode {:o}: another could answer in it", directory,
               folder.st_uid, folder.st_mode & 07777);
}

}  // namespace

Status pause_for(std::chrono::milliseconds time, const Interrupted& interrupted) {
  std::this_thread::sleep_for(time);
  return check_interrupted(interrupted);
}

DaemonSocket::DaemonSocket(UniqueFd fd, pid_t daemon_pid, const Interrupted& interrupted)
    : m_fd(std::move(fd)),
      m_owner(getpid()),
      m_daemon_pid(daemon_pid),
      m_interrupted(interrupted),
      m_reader(limits::k_frame_bytes),
      m_buffer(size_t{64} << 10) {}

bool DaemonSocket::is_of_this_process() const { return m_owner == getpid(); }

Expected<std::unique_ptr<DaemonSocket>> DaemonSocket::connect(const std::string& path, const Interrupted& interrupted) {
  KILN_RETURN_IF_ERROR(check_place(path));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return error(StatusCode::unavailable, "socket: {}", std::strerror(errno));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  int result = -1;
  do {
    result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    if (errno == EAGAIN) return error(StatusCode::resource_exhausted, "{}: too many are connecting", path);
    if (errno == ENOENT || errno == ECONNREFUSED) return error(StatusCode::not_found, "nobody listens at {}", path);
    return error(StatusCode::unavailable, "connect {}: {}", path, std::strerror(errno));
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid()) {
    return error(StatusCode::permission_denied, "user {} listens at {}, expected {}", peer.uid, path, geteuid());
  }
  return std::unique_ptr<DaemonSocket>(new DaemonSocket(std::move(fd), peer.pid, interrupted));
}

Status DaemonSocket::send(const protocol::Message& message, Deadline deadline) {
  const std::vector<uint8_t> bytes = protocol::encode(message);
  for (std::span<const uint8_t> rest(bytes); !rest.empty();) {
    const ssize_t sent = ::send(m_fd.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      rest = rest.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      KILN_RETURN_IF_ERROR(
          in_slices(deadline, m_interrupted, [this](Deadline until) { return wait_for(m_fd.get(), POLLOUT, until); }));
    } else if (errno != EINTR) {
      return error(StatusCode::unavailable, "send: {}", std::strerror(errno));
    }
  }
  return {};
}

Expected<protocol::Message> DaemonSocket::receive(Deadline deadline) {
  for (;;) {
    bool whole = false;
    Frame frame;
    if (!m_unread.empty()) KILN_RETURN_IF_ERROR(m_reader.feed(m_unread, whole, frame));
    if (whole) return protocol::decode(frame);
    if (!m_unread.empty()) continue;
    KILN_ASSIGN_OR_RETURN(const size_t got, in_slices(deadline, m_interrupted, [this](Deadline until) {
                            return receive_some(m_fd.get(), m_buffer, until);
                          }));
    if (got == 0) return error(StatusCode::unavailable, "the daemon closed the connection");
    m_unread = std::span<const uint8_t>(m_buffer).first(got);
  }
}

Status DaemonSocket::greet(Deadline deadline) {
  KILN_ASSIGN_OR_RETURN(const protocol::Message message, receive(deadline));
  if (const auto* failure = std::get_if<protocol::Failure>(&message)) return failure->status;
  const auto* hello = std::get_if<protocol::Hello>(&message);
  if (hello == nullptr) return error(StatusCode::failed_precondition, "the daemon did not greet");
  if (hello->protocol_version != protocol::k_protocol_version) {
    return error(StatusCode::failed_precondition, "the daemon ({}) speaks protocol {}, expected {}; kiln daemon stop",
                 hello->build_id, hello->protocol_version, protocol::k_protocol_version);
  }
  m_daemon_build = hello->build_id;
  return send(
      protocol::Hello{protocol::k_protocol_version, std::string(protocol::build_id()), static_cast<uint32_t>(getpid())},
      deadline);
}

bool DaemonSocket::is_of_this_build() const { return m_daemon_build == protocol::build_id(); }

std::string DaemonSocket::is_not_ours() const {
  return fmt::format(
      "kilnd is another build ({}) than this process has ({}), as after an update; begin the process anew, or see that "
      "both are of one installation (daemon.path)",
      m_daemon_build, protocol::build_id());
}

Status DaemonSocket::see_off(Deadline (*until_silence)(Deadline), Deadline deadline) {
  protocol::Command leave;
  leave.id = next_id();
  leave.verb = protocol::Verb::shutdown;
  Status status = send(leave, until_silence(deadline));
  while (status.ok()) status = receive(until_silence(deadline)).status();
  return status.code() == StatusCode::unavailable ? Status() : status;
}

}  // namespace kiln
