#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/expected.h"

namespace kiln {

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : m_fd(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : m_fd(std::exchange(other.m_fd, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.m_fd, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return m_fd; }
  explicit operator bool() const { return m_fd >= 0; }
  int release() { return std::exchange(m_fd, -1); }
  void reset(int fd = -1);

 private:
  int m_fd = -1;
};

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
inline constexpr Deadline k_no_deadline = Deadline::max();
inline Deadline deadline_in(uint64_t milliseconds) { return Clock::now() + std::chrono::milliseconds(milliseconds); }

/// Waits until `fd` is ready for `events` (POLLIN, POLLOUT). Survives signals.
/// Errors: deadline_exceeded.
Status wait_for(int fd, short events, Deadline deadline);

/// Writes all of `bytes` to a socket, blocking or not. Never raises SIGPIPE.
/// Errors: deadline_exceeded; unavailable when the peer is gone.
Status send_all(int socket, std::span<const uint8_t> bytes, Deadline deadline);

/// Reads what has come, at least one byte; 0 when the peer has closed.
/// Errors: deadline_exceeded, unavailable.
Expected<size_t> receive_some(int socket, std::span<uint8_t> bytes, Deadline deadline);

}  // namespace kiln
