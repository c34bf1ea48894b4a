#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/config/config.h"
#include "base/fd.h"
#include "service/entry_store.h"

namespace kiln {

/// The daemon: accepts clients of its own user, runs each wanted build once, publishes, answers, and leaves
/// when it is told to or has been idle.
///
/// Threads: the caller's runs everything that decides and all sockets; a pool runs builds (one thread per
///   worker process); one thread has the store.
class Server {
 public:
  struct Options {
    Config config;
    std::string socket_path;
    std::string worker_program;
    /// Is the cache directory still the one whose instance lock the caller holds?
    std::function<bool()> is_in_force;
  };

  Server(Options options, std::unique_ptr<EntryStore> store);
  ~Server();

  /// Binds the socket, or takes the one that a supervisor hands over. The caller holds the instance lock.
  Status listen(UniqueFd handed_over = {});

  /// Serves until SIGTERM, SIGINT, the shutdown command or idle exit; then no new work is taken, what runs is finished
  /// (bounded by daemon.drain_timeout_ms) and answered. Once the instance is not in force any more it returns at once.
  /// The socket's name is gone when this returns, unless it is a supervisor's, or another daemon's by now.
  void run();

 private:
  class Impl;
  std::unique_ptr<Impl> m_impl;
};

}  // namespace kiln
