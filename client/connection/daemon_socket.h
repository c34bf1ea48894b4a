#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "service/protocol/message.h"

namespace kiln {

/// Asked about ten times a second, on the waiting thread, while something is waited for; true ends the wait.
using Interrupted = std::function<bool()>;

/// One socket to a daemon. Belongs to the process that made it: a forked child must not speak on it.
/// Errors of all that waits: cancelled when `interrupted` said so; deadline_exceeded.
class DaemonSocket {
 public:
  /// Connects to the socket of `path`, once it is certain that this user's daemon, and nobody else, is behind it: before
  /// a byte is sent. Errors: not_found when nobody listens there; permission_denied when another user could, or does.
  static Expected<std::unique_ptr<DaemonSocket>> connect(const std::string& path, const Interrupted& interrupted);

  Status send(const protocol::Message& message, Deadline deadline);

  /// The next message. unavailable when the daemon has gone.
  Expected<protocol::Message> receive(Deadline deadline);

  /// Both sides say who they are. unavailable when the daemon left before its greeting: try again.
  Status greet(Deadline deadline);
  bool is_of_this_build() const;
  /// What there is to say of a daemon of another build that cannot be replaced, and what to do.
  std::string is_not_ours() const;

  /// Asks the daemon to leave, and returns when it has. `until_silence(deadline)`: how long it may say nothing.
  Status see_off(Deadline (*until_silence)(Deadline), Deadline deadline);

  bool is_of_this_process() const;
  uint32_t next_id() { return m_next_id++; }
  pid_t daemon_pid() const { return m_daemon_pid; }

 private:
  DaemonSocket(UniqueFd fd, pid_t daemon_pid, const Interrupted& interrupted);

  UniqueFd m_fd;
  pid_t m_owner, m_daemon_pid;
  const Interrupted& m_interrupted;
  std::string m_daemon_build;
  uint32_t m_next_id = 1;
  FrameReader m_reader;
  std::vector<uint8_t> m_buffer;
  std::span<const uint8_t> m_unread;
};

/// Sleeps for a moment, or until interrupted. Errors: cancelled.
Status pause_for(std::chrono::milliseconds time, const Interrupted& interrupted);

}  // namespace kiln
