#include "base/fd.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kiln {

void UniqueFd::reset(int fd) {
  if (m_fd >= 0) close(m_fd);  // Linux frees the number also when interrupted: never again
  m_fd = fd;
}

Status wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    int timeout_ms = -1;
    if (deadline != k_no_deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
    }
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, timeout_ms);
    if (ready > 0) return {};  // errors and hang-ups show in the read or write that follows
    if (ready == 0) return error(StatusCode::deadline_exceeded, "no answer before the deadline");
    if (errno != EINTR) return error(StatusCode::internal, "poll: {}", std::strerror(errno));
  }
}

Status send_all(int socket, std::span<const uint8_t> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      KILN_RETURN_IF_ERROR(wait_for(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return error(StatusCode::unavailable, "send: {}", std::strerror(errno));
    }
  }
  return {};
}

Expected<size_t> receive_some(int socket, std::span<uint8_t> bytes, Deadline deadline) {
  for (;;) {
    const ssize_t got = recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      KILN_RETURN_IF_ERROR(wait_for(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return error(StatusCode::unavailable, "receive: {}", std::strerror(errno));
    }
  }
}

}  // namespace kiln
