#pragma once

#include <string>

#include "base/expected.h"
#include "base/fd.h"

namespace kiln {

/// What started this daemon and waits for it, where that speaks systemd's two conventions: a socket that listens already
/// comes as descriptor 3 (sd_listen_fds(3)), and words go to a datagram socket (sd_notify(3)). Nobody, most of the time.
class Supervisor {
 public:
  /// Takes what the environment says of one out of it: it is meant for this process alone. Before any thread, and before
  /// anything is opened. Errors: invalid_argument when other than one socket is handed over.
  static Expected<Supervisor> from_environment();

  /// The socket that was handed over; none when there is none, or when it was taken.
  UniqueFd take_socket() { return std::move(m_socket); }
  /// The daemon serves. One that cannot be told is none of the daemon's concern.
  void tell_ready() const;

 private:
  UniqueFd m_socket;
  std::string m_address;  // where words go; empty: nowhere
};

}  // namespace kiln
