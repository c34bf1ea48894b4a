#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/config/config.h"
#include "client/connection/daemon_socket.h"
#include "client/connection/failure_memory.h"

namespace kiln {

/// The client's side of the daemon's socket, blocking: connects, starts kilnd when there is none, asks,
/// waits.
///
/// Threading: any method from any thread at once; each request has a socket of its own while it is in flight.
/// Fork: a child may use a connection made before the fork, whatever its parent's threads did at that moment; it connects
/// anew. No thread, no signal handler; SIGPIPE is never raised.
/// Errors: unavailable (Kiln or its daemon is turned off, cannot be found or started in time, hangs, or died more
/// often than a request is retried), deadline_exceeded (the work goes on in the daemon), cancelled (`interrupted`), or
/// what the daemon answered. A daemon that could not be had is waited for once: for a while after, everybody is told
/// at once what the first one found out.
/// Cost: a warm request is one send and one receive; the first one a connect and a greeting, about 0.1 ms, or
/// the start of a daemon.
class Connection {
 public:
  using ProgressCallback = std::function<void(const protocol::Progress&)>;

  /// Nothing is connected yet: that happens with the first request.
  explicit Connection(Config config, Interrupted interrupted = {});
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
  Expected<std::unique_ptr<DaemonSocket>> take_socket(bool may_start, Deadline deadline);
  Expected<std::unique_ptr<DaemonSocket>> connect_or_start(bool may_start, Deadline request_deadline);
  void drop_idle();
  void give_back(std::unique_ptr<DaemonSocket> socket);
  Expected<protocol::Message> ask(const protocol::Message& request, bool may_start, Deadline deadline,
                                  const ProgressCallback& progress);
  static Deadline until_silence(Deadline deadline);
  Status heard(Status status, const DaemonSocket& socket, Deadline deadline);
  Status remember(FailureMemory::Kind kind, const std::string& why);
  Status judge(const Status& failure, pid_t daemon_pid);

  const Config m_config;
  const Interrupted m_interrupted;
  FailureMemory m_failure;
  std::vector<std::unique_ptr<DaemonSocket>> m_idle;  // process_mutex() guards it
};

}  // namespace kiln
