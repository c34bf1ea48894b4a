#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/expected.h"
#include "base/fd.h"
#include "service/protocol/message.h"

namespace kiln {

/// Who waits for a job: a request on a session.
struct Asker {
  uint64_t session = 0;
  uint32_t request = 0;
  bool joined = false;  // came when the job was there already
};

/// What is asked for, once: the digest of graph and targets.
Digest job_key(const protocol::Build& build);

/// How people find it: by the key of the program that is asked for, which lists show, where the client names that.
Digest known_key(const protocol::Build& build);
/// How logs and events speak of it.
std::string title_of(const protocol::Build& build);

/// Single flight and fair order. One job for each key, whoever asks; askers join, leave and die without
/// ending it. Queued jobs are bounded. The next one is of the lowest priority number; among those, of the
/// owner (client process) that was served longest ago; among its own, the oldest. Jobs that nobody waits for have
/// their turn while no other job is there: those that run make way, and are put back. Keys that killed their workers
/// are refused for a while.
///
/// Pure bookkeeping: no I/O, no clock of its own. Threading: one thread.
class JobTable {
 public:
  struct Job {
    Digest key;
    protocol::Build build;
    uint64_t owner = 0;
    uint64_t arrival = 0;
    bool running = false;
    protocol::Priority begun_as = protocol::Priority::waiting;  // since it runs; what it is asked for with may change
    uint64_t build_number = 0;                                  // the pool's, since it runs
    std::vector<Asker> askers;
    protocol::Progress progress;  // the last that its worker said
  };

  /// Joins the key's job or queues a new one. Errors: resource_exhausted when the queue is full, or its graphs are too
  /// large together; what the key is in quarantine for.
  Status ask(protocol::Build build, Asker asker, uint64_t owner, Deadline now);

  /// Takes the next job to run; nullptr when none may. Valid until it is finished.
  const Job* next();
  void note_build(const Digest& key, uint64_t number) { m_jobs.at(key).build_number = number; }

  /// The build numbers of those that are to make way: they began when nobody waited for them, and now somebody waits for
  /// them or for another job.
  std::vector<uint64_t> in_the_way() const;
  /// The job made way: it is queued again.
  void put_back(const Digest& key);

  void note_progress(const Digest& key, const protocol::Progress& progress);

  /// Those who wait for `key` now.
  const std::vector<Asker>& askers(const Digest& key) const;
  /// The job is over: forgets it and gives those who waited.
  std::vector<Asker> finish(const Digest& key);
  /// The session is gone. What it asked for is done all the same, but a job nobody waits for comes last.
  void leave(uint64_t session);

  /// How logs and events speak of the job.
  std::string title(const Digest& key) const;

  /// Refuses what `build` asks for with `status` until `until`.
  void quarantine(const protocol::Build& build, Status status, Deadline until);
  void forgive_all() { m_quarantine.clear(); }

  size_t bytes() const { return m_bytes; }
  size_t queued() const { return m_jobs.size() - m_running; }
  size_t running() const { return m_running; }
  const std::unordered_map<Digest, Job>& jobs() const { return m_jobs; }

  struct Quarantine {
    Status status;
    Deadline until;
    Digest known_key;
    std::string name;
  };
  const std::unordered_map<Digest, Quarantine>& quarantined() const { return m_quarantine; }

 private:
  bool is_anybody_waiting() const;

  std::unordered_map<Digest, Job> m_jobs;
  std::unordered_map<Digest, Quarantine> m_quarantine;
  std::unordered_map<uint64_t, uint64_t> m_last_served;  // owner → turn; only owners with jobs
  size_t m_running = 0;
  size_t m_bytes = 0;  // of all jobs' graphs
  uint64_t m_arrivals = 0;
  uint64_t m_turns = 0;
};

}  // namespace kiln
