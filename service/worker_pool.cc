#include "service/worker_pool.h"

#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "base/usable_memory.h"
#include "base/usable_processors.h"
#include "jit/worker/job.h"

namespace kiln {

namespace {

/// To a worker that has not begun: its threads, and what it starts, inherit it. The system lets a process sink, and not rise
/// without a right. The time of those that sank is booked as "nice", by which others know that the machine is not busy.
void set_priority(pid_t worker, protocol::Priority priority) {
  constexpr int k_nice = 10, k_nicest = 19;
  if (priority == protocol::Priority::waiting) return;
  const bool is_guest = priority == protocol::Priority::background;
  const sched_param none{};
  if (is_guest) sched_setscheduler(worker, SCHED_IDLE, &none);
  setpriority(PRIO_PROCESS, static_cast<id_t>(worker), is_guest ? k_nicest : k_nice);
}

/// Whether a build may have failed so because of code that it was given: wrong, deadly or endless.
bool may_be_of_code(StatusCode code) {
  return code == StatusCode::internal || code == StatusCode::aborted || code == StatusCode::deadline_exceeded;
}

}  // namespace

std::shared_ptr<BuildResult> result_of(JobOutcome outcome) {
  const auto whole = std::make_shared<JobOutcome>(std::move(outcome));
  return {whole, &*whole->result};
}

WorkerPool::Options WorkerPool::options_of(const Config& config, std::string program) {
  const size_t processors = usable_processors();
  const size_t count = config.worker_count == 0 ? processors : std::min<size_t>(config.worker_count, 1'024);
  // A build may use every processor until its deadline; twice that is a runaway the deadline missed.
  const uint64_t cpu_seconds = std::max<uint64_t>(1, config.worker_deadline_ms / 1'000) * processors * 2;
  return {std::move(program),          count,
          config.worker_deadline_ms,   {config.worker_memory_max_bytes, cpu_seconds},
          std::max(count, processors), config.worker_memory_expected_bytes};
}

WorkerPool::WorkerPool(Options options, Supplies& supplies)
    : m_options(std::move(options)),
      m_supplies(supplies),
      m_zygote({m_options.program, m_options.limits, m_options.threads}) {
  // Started from here, not from a pool thread: it dies with the thread that starts it.
  if (const Status status = m_zygote.warm(); !status.ok()) spdlog::error("{}", status.message());
  for (size_t i = 0; i < m_options.count; ++i) m_threads.emplace_back([this] { work(); });
  if (const size_t allowed = room(); allowed < m_options.count) {
    spdlog::warn("free memory allows {} builds at once, of {} (worker.memory_expected_bytes)", allowed,
                 m_options.count);
  }
}

/// Nobody knows how much a running build is still going to take: so for each of them as much is to be free as for one that
/// begins.
size_t WorkerPool::room() const {
  if (m_options.memory_expected_bytes == 0) return m_options.count;
  return std::clamp<uint64_t>(usable_memory() / m_options.memory_expected_bytes, 1, m_options.count);
}

/// What is free is read from files of the system, and only where it decides.
bool WorkerPool::has_room_beside(size_t running) const {
  return running < size() && (running == 0 || running < room());
}

WorkerPool::~WorkerPool() {
  kill_all();
  for (std::thread& thread : m_threads) thread.join();
}

uint64_t WorkerPool::submit(BuildRequest request, protocol::Priority priority, ProgressFunction progress, Keep keep,
                            Done done) {
  uint64_t number = 0;
  {
    const std::scoped_lock lock(m_mutex);
    m_lives[number = ++m_numbers] = {};
    m_jobs.push_back({number, std::move(request), priority, std::move(progress), std::move(keep), std::move(done)});
  }
  m_changed.notify_one();
  return number;
}

/// A closed conversation wakes the thread that waits for the worker's next word.
void WorkerPool::cancel(uint64_t number) {
  const std::scoped_lock lock(m_mutex);
  const auto life = m_lives.find(number);
  if (life == m_lives.end()) return;
  life->second.is_cancelled = true;
  if (life->second.socket >= 0) shutdown(life->second.socket, SHUT_RDWR);
}

bool WorkerPool::is_cancelled(uint64_t number) {
  const std::scoped_lock lock(m_mutex);
  return m_lives.at(number).is_cancelled;
}

void WorkerPool::set_socket(uint64_t number, int socket) {
  const std::scoped_lock lock(m_mutex);
  Life& life = m_lives.at(number);
  life.socket = socket;
  if (life.is_cancelled && socket >= 0) shutdown(socket, SHUT_RDWR);
}

void WorkerPool::kill_all() {
  {
    const std::scoped_lock lock(m_mutex);
    m_stopping = true;
  }
  m_changed.notify_all();
  m_zygote.kill_all();
}

bool WorkerPool::stopping() {
  const std::scoped_lock lock(m_mutex);
  return m_stopping;
}

void WorkerPool::work() {
  for (;;) {
    std::unique_lock lock(m_mutex);
    m_changed.wait(lock, [this] { return m_stopping || !m_jobs.empty(); });
    if (m_jobs.empty()) return;
    const Job job = std::move(m_jobs.front());
    m_jobs.pop_front();
    lock.unlock();
    JobOutcome outcome = run(job);
    lock.lock();
    m_lives.erase(job.number);
    lock.unlock();
    job.done(std::move(outcome));
  }
}

JobOutcome WorkerPool::run(const Job& job) {
  const std::shared_ptr<BuildSupply> supply = m_supplies.for_build();
  if (auto found = supply->programs(job.request.program_keys, job.request.tuning != Tuning::off)) {
    return {std::move(*found), 0, false, supply};
  }
  for (size_t attempt = 0;; ++attempt) {
    if (stopping()) return {error(StatusCode::unavailable, "the daemon is leaving"), 0, false};
    if (is_cancelled(job.number)) return {error(StatusCode::cancelled, "not wanted any more"), 0, false};
    JobOutcome outcome = run_once(job, *supply);
    outcome.supply = supply;
    if (stopping()) return outcome;
    const Status& status = outcome.result.status();
    if (may_be_of_code(status.code()) && supply->reject_candidates(status.message())) continue;
    if (status.code() != StatusCode::aborted) return outcome;
    spdlog::warn("attempt {}: {}", attempt + 1, status.message());
    if (attempt == limits::k_job_retries) {
      outcome.poisonous = true;
      return outcome;
    }
  }
}

JobOutcome WorkerPool::run_once(const Job& job, BuildSupply& supply) {
  auto worker = m_zygote.fork_worker();
  if (!worker) return {worker.status(), 0, false};
  set_priority(worker->pid, job.priority);
  set_socket(job.number, worker->socket.get());
  Expected<BuildResult> result = converse(worker->socket.get(), job, supply, deadline_in(m_options.deadline_ms));
  set_socket(job.number, -1);
  if (!result.ok() && is_cancelled(job.number)) {
    m_zygote.abandon(*worker);
    return {error(StatusCode::cancelled, "not wanted any more"), 0, false};
  }
  if (result.ok()) {
    m_zygote.leave(*worker);
    return {std::move(result), 0, false};
  }
  const int status = m_zygote.finish(*worker);
  switch (result.status().code()) {
    case StatusCode::deadline_exceeded:  // where the processors were others', it was not the build that hung
      return {error(StatusCode::deadline_exceeded, "the build took longer than {} ms", m_options.deadline_ms), SIGKILL,
              job.priority == protocol::Priority::waiting};
    case StatusCode::unavailable: {  // it hung up without an answer
      const uint32_t signal = WIFSIGNALED(status) ? static_cast<uint32_t>(WTERMSIG(status)) : 0;
      const Status died =
          signal != 0
              ? error(StatusCode::aborted, "the compile worker died of signal {} ({})", signal,
                      strsignal(static_cast<int>(signal)))
              : error(StatusCode::aborted, "the compile worker left with status {} and no answer", WEXITSTATUS(status));
      return {died, signal, false};
    }
    default:
      return {std::move(result), 0, false};
  }
}

/// What is to be built though it is there is had of nobody. A wait leaves the build half of its time.
CodeAnswer WorkerPool::answer(const job::CodeQuestion& question, const Job& job, BuildSupply& supply,
                              Deadline deadline) {
  if (job.request.cache_directory.empty()) return {};
  const Deadline now = Clock::now();
  return supply.ask(question.keys, question.waits, question.judges, now + (deadline - now) / 2,
                    [&] { return stopping() || is_cancelled(job.number); });
}

/// Sends the job and reads until its end. unavailable: the worker hung up. Other errors are the build's own.
Expected<BuildResult> WorkerPool::converse(int socket, const Job& job, BuildSupply& supply, Deadline deadline) {
  KILN_RETURN_IF_ERROR(send_all(socket, job::encode(job.request), deadline));
  FrameReader reader(limits::k_frame_bytes);
  std::vector<uint8_t> buffer(size_t{256} << 10);
  for (;;) {
    KILN_ASSIGN_OR_RETURN(const size_t got, receive_some(socket, buffer, deadline));
    if (got == 0) return error(StatusCode::unavailable, "hung up");
    auto bytes = std::span<const uint8_t>(buffer).first(got);
    while (!bytes.empty()) {
      bool whole = false;
      Frame frame;
      KILN_RETURN_IF_ERROR(reader.feed(bytes, whole, frame));
      if (!whole) continue;
      KILN_ASSIGN_OR_RETURN(job::JobMessage message, job::decode(frame));
      if (const auto* step = std::get_if<job::JobProgress>(&message)) {
        if (job.progress) job.progress(step->stage, step->done, step->total, step->item);
      } else if (const auto* question = std::get_if<job::CodeQuestion>(&message)) {
        KILN_RETURN_IF_ERROR(send_all(socket, job::encode(answer(*question, job, supply, deadline)), deadline));
      } else if (const auto* wanted = std::get_if<job::EntryQuestion>(&message)) {
        // What is to be built though it is there is had of nobody.
        job::EntryAnswer answered;
        if (!job.request.cache_directory.empty()) {
          answered.entries = supply.find(wanted->keys, wanted->kind, wanted->raced);
        }
        KILN_RETURN_IF_ERROR(send_all(socket, job::encode(std::move(answered)), deadline));
      } else if (auto* code = std::get_if<job::MadeCode>(&message)) {
        supply.give(std::move(code->made));
      } else if (auto* found = std::get_if<job::Found>(&message)) {
        if (job.keep) job.keep(std::make_shared<const BuildResult>(std::move(found->result)));
      } else if (auto* result = std::get_if<BuildResult>(&message)) {
        return std::move(*result);
      } else if (const auto* failure = std::get_if<job::JobFailure>(&message)) {
        // Codes that speak of the worker itself here are the build's own there: they must not look like a
        // crash.
        const StatusCode code = failure->status.code();
        const bool ours =
            code == StatusCode::unavailable || code == StatusCode::aborted || code == StatusCode::deadline_exceeded;
        return Status(ours ? StatusCode::internal : code, failure->status.message()).with_op(failure->status.op());
      } else {
        return error(StatusCode::internal, "the compile worker sent kind {}", message.index());
      }
    }
  }
}

}  // namespace kiln
