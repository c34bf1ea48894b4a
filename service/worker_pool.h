#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/config/config.h"
#include "jit/build/build.h"
#include "jit/worker/job.h"
#include "jit/worker/zygote.h"
#include "service/protocol/message.h"
#include "service/supplies.h"

namespace kiln {

/// How a job ended.
struct JobOutcome {
  Expected<BuildResult> result;
  uint32_t signal = 0;     // what killed its worker, if something did
  bool poisonous = false;  // it hung, or killed worker after worker: the key is to be quarantined
  /// What the build had of others, who may wait for it: kept until the result is published.
  std::shared_ptr<BuildSupply> supply = nullptr;
};

/// The result of a build that went well; the outcome lives as long.
std::shared_ptr<BuildResult> result_of(JobOutcome outcome);

/// Runs builds in compile workers: one thread for each build at once, which forks a worker, talks to it,
/// holds it to its deadline and puts it away. A worker that crashes is tried once more; one that hangs is
/// not, since that would hang as long again. A build that nobody waits for runs at a lower priority of the system: that
/// of nice(1), or in the background when a processor has nothing else to do.
///
/// Threading: any thread. `progress`, `keep` and `done` are called on the pool's threads.
class WorkerPool {
 public:
  struct Options {
    std::string program;
    size_t count = 1;
    uint64_t deadline_ms = 0;
    WorkerLimits limits;
    size_t threads = 1;                  // of all builds together, as far as each has more than one
    uint64_t memory_expected_bytes = 0;  // of each build
  };
  static Options options_of(const Config& config, std::string program);

  using Done = std::function<void(JobOutcome)>;
  /// Is given what races have found while their build goes on.
  using Keep = std::function<void(std::shared_ptr<const BuildResult>)>;

  /// `supplies` outlives it.
  WorkerPool(Options options, Supplies& supplies);
  /// Kills what runs; their `done` is called with unavailable first.
  ~WorkerPool();

  size_t size() const { return m_options.count; }
  /// How many builds there is free memory for at this moment: size() at most, and one always.
  size_t room() const;
  /// Whether one more may run beside so many.
  bool has_room_beside(size_t running) const;

  /// Gives the job's number. Without `keep` nothing is kept before the job is done. Its priority is for good: where it is
  /// to be another, the job is cancelled and submitted anew.
  uint64_t submit(BuildRequest request, protocol::Priority priority, ProgressFunction progress, Keep keep, Done done);

  /// Ends a job with cancelled; nothing when it is over. Its worker dies by itself, which is not waited for.
  void cancel(uint64_t number);

  /// Ends every running and waiting job with unavailable.
  void kill_all();

 private:
  struct Job {
    uint64_t number = 0;
    BuildRequest request;
    protocol::Priority priority = protocol::Priority::waiting;
    ProgressFunction progress;
    Keep keep;
    Done done;
  };

  struct Life {
    int socket = -1;  // to its worker
    bool is_cancelled = false;
  };

  void work();
  JobOutcome run(const Job& job);
  JobOutcome run_once(const Job& job, BuildSupply& supply);
  Expected<BuildResult> converse(int socket, const Job& job, BuildSupply& supply, Deadline deadline);
  CodeAnswer answer(const job::CodeQuestion& question, const Job& job, BuildSupply& supply, Deadline deadline);
  bool stopping();
  bool is_cancelled(uint64_t number);
  /// The worker of the job can be spoken to there, until -1 is set.
  void set_socket(uint64_t number, int socket);

  const Options m_options;
  Supplies& m_supplies;
  Zygote m_zygote;
  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::deque<Job> m_jobs;
  uint64_t m_numbers = 0;
  std::map<uint64_t, Life> m_lives;  // of the jobs that are not over, by number
  bool m_stopping = false;
  std::vector<std::thread> m_threads;
};

}  // namespace kiln
