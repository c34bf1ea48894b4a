#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/expected.h"
#include "base/fd.h"
#include "jit/worker/compile_worker.h"

namespace kiln {

/// kiln-worker's main: a single-threaded process with the compiler warm (`warm_up` ran once) that forks
/// compile workers when asked, and kills and reaps them when told. It touches no GPU and starts no thread, so
/// that its forks are whole. Ends when the daemon does.
int zygote_main(int argc, char** argv, const std::function<void()>& warm_up, const BuildFunction& build);

enum class ZygoteOrder : uint32_t;

/// The daemon's end: starts the zygote program, again when it died, and asks it for compile workers.
/// Threading: any thread; one request at a time. The zygote dies with the thread that started it.
class Zygote {
 public:
  struct Options {
    std::string program;
    WorkerLimits limits;
    size_t threads = 1;  // of all builds together, as far as each has more than one
  };
  struct Worker {
    pid_t pid = -1;
    UniqueFd socket;           // stream of job messages (job.h)
    uint64_t incarnation = 0;  // of the zygote it came from
  };

  explicit Zygote(Options options) : m_options(std::move(options)) {}
  ~Zygote();

  /// Starts the zygote now, so that the first build finds it warm.
  Status warm();
  /// Errors: unavailable when the program cannot be started, or after kill_all.
  Expected<Worker> fork_worker();
  /// Kills the worker's whole group, if it still lives, and reaps it. Gives its wait status: what it was
  /// before this call if it had ended. 0 when the zygote has died meanwhile: its workers died with it.
  int finish(const Worker& worker);
  /// Kills the worker's whole group without waiting for its end, which may take a while where it ran as a guest.
  void abandon(const Worker& worker);
  /// Has a worker that gave its answer end by itself: it may still unmap what its candidates ran on. It is killed where it
  /// does not, some seconds later, or when many others do the same.
  void leave(const Worker& worker);
  /// Kills the zygote and with it every worker, for good: from here on nothing is started.
  void kill_all();

 private:
  Status start();
  void stop();
  int end(const Worker& worker, ZygoteOrder order);

  Options m_options;
  std::mutex m_mutex;
  pid_t m_pid = -1;
  UniqueFd m_socket;
  uint64_t m_incarnation = 0;
  bool m_is_over = false;
};

}  // namespace kiln
