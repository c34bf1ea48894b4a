#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "base/processor_times.h"
#include "service/counters.h"
#include "service/entry_store.h"
#include "service/flight_recorder.h"
#include "service/protocol/message.h"
#include "service/worker_pool.h"

namespace kiln {

/// Lets the candidates of published programs race while the machine has nothing else to do: one job at a time, as a guest
/// (Tuning::background), ended as soon as somebody else uses the processors or asks for a build. What is left to do is
/// read from the store, so that a tuner that was ended, whenever, goes on where it was.
///
/// Threading: the io_context's one thread.
class BackgroundTuner {
 public:
  /// What the server lends; all of it outlives the tuner.
  struct Surroundings {
    boost::asio::io_context& io;
    boost::asio::thread_pool& store_thread;
    EntryStore& store;
    Supplies& supplies;
    WorkerPool& pool;
    Counters& counters;
    FlightRecorder& events;
    std::string cache_directory;
    std::function<bool()> has_builds;  // that run or wait
  };

  explicit BackgroundTuner(Surroundings surroundings) : m_around(std::move(surroundings)), m_timer(m_around.io) {}

  /// Begins to watch the machine.
  void start();
  /// Something was published, or removed: there may be work.
  void look_again();
  /// Ends the job that runs: its processors are wanted.
  void interrupt();
  /// For good: the daemon leaves.
  void stop();

  /// Whether a job runs: the pool and the store are still to call back.
  bool is_running() const { return m_job != 0 || m_is_asking; }
  /// Whether there is work, or may be: the store has not answered since something was published.
  bool has_work() const { return !m_is_stopped && (m_next.has_value() || m_is_asking || m_may_have_work); }
  /// The kernel that races, and how many of its program did; no stage when nothing runs.
  const protocol::Progress& progress() const { return m_progress; }

 private:
  void schedule();
  void tick();
  void ask_store();
  void run();
  void on_done(const std::shared_ptr<UntunedProgram>& program, JobOutcome outcome);
  void on_published(const UntunedProgram& program, const BuildResult& result, const Status& status);
  void count(uint32_t races);
  void give_up(const Digest& key);

  Surroundings m_around;
  boost::asio::steady_timer m_timer;
  ProcessorWatch m_watch;
  uint32_t m_quiet = 0, m_busy = 0;  // glances in a row that found the machine so
  bool m_is_stopped = true;
  bool m_is_asking = false;  // the store
  bool m_may_have_work = true;
  std::optional<UntunedProgram> m_next;
  uint64_t m_job = 0;         // the pool's number of it; 0: none
  uint32_t m_kept_races = 0;  // of the job
  protocol::Progress m_progress;
  std::unordered_set<Digest> m_given_up;  // programs whose races fail
};

}  // namespace kiln
