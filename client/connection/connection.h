#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/config/config.h"
#include "base/fd.h"
#include "service/protocol/message.h"

namespace kiln {

/// The client's side of the daemon's socket, blocking: connects, starts kilnd when there is none, asks,
/// waits.
///
/// Threading: any method from any thread at once; each request has a socket of its own while it is in flight.
/// Fork: a child may use a connection made before the fork; it connects anew. No locks are waited for, so a
/// fork at any moment cannot deadlock the child. No thread, no signal handler; SIGPIPE is never raised.
/// Errors: unavailable (Kiln or its daemon is turned off, cannot be found or started in time, or died more
/// often than a request is retried), deadline_exceeded (the work goes on in the daemon), or what the daemon
/// answered.
/// Cost: a warm request is one send and one receive; the first one a connect and a greeting, about 0.1 ms, or
/// the start of a daemon.
class Connection {
 public:
  using ProgressCallback = std::function<void(const protocol::Progress&)>;

  /// Nothing is connected yet: that happens with the first request.
  explicit Connection(Config config);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Connects now. Starts the daemon unless `may_start` is false.
  Status open(bool may_start = true);

  /// Sends `request` (its id is chosen here) and waits. `progress` is called on this thread.
  /// When this returns well, every head is to be found in the mapped index.
  Expected<protocol::Built> build(protocol::Build request, Deadline deadline, const ProgressCallback& progress = {});

  /// Any other verb; the answer is JSON. `may_start` false: unavailable when no daemon runs.
  Expected<std::string> command(protocol::Command request, Deadline deadline, bool may_start = true);

 private:
  struct Socket;

  Expected<std::unique_ptr<Socket>> take_socket(bool may_start, Deadline deadline);
  Expected<std::unique_ptr<Socket>> connect_or_start(bool may_start, Deadline deadline);
  void give_back(std::unique_ptr<Socket> socket);
  Expected<protocol::Message> ask(const protocol::Message& request, bool may_start, Deadline deadline,
                                  const ProgressCallback& progress);

  const Config m_config;
  std::mutex m_idle_mutex;  // only ever tried, never waited for: see Fork
  std::vector<std::unique_ptr<Socket>> m_idle;
};

}  // namespace kiln
