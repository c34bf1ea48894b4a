#include "jit/worker/compile_worker.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>

#include "backends/devices.h"
#include "base/limits.h"
#include "base/usable_processors.h"
#include "jit/worker/job.h"
#include "jit/worker/process_runner.h"
#include "jit/worker/sandbox.h"

namespace kiln {
namespace {

#ifdef KILN_IS_SANITIZED
constexpr bool k_sanitized = true;  // shadow memory takes terabytes of address space
#else
constexpr bool k_sanitized = false;
#endif

void limit(__rlimit_resource resource, uint64_t value) {
  const rlimit bound{value, value};
  setrlimit(resource, &bound);
}

void bound_process(pid_t parent, const WorkerLimits& limits) {
  setpgid(0, 0);  // with its execution workers: one kill ends them all
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  limit(RLIMIT_CORE, 0);
  if (limits.cpu_max_seconds != 0) limit(RLIMIT_CPU, limits.cpu_max_seconds);
  if (limits.memory_max_bytes != 0 && !k_sanitized) {
    // The hard limit stays: an execution worker of a device lifts it, since drivers reserve more than there is memory.
    rlimit address_space{};
    getrlimit(RLIMIT_AS, &address_space);
    address_space.rlim_cur = std::min<rlim_t>(limits.memory_max_bytes, address_space.rlim_max);
    setrlimit(RLIMIT_AS, &address_space);
    limit(RLIMIT_FSIZE, limits.memory_max_bytes);  // memfds count as files
  }
  // When memory runs out, better a build than the training it was for.
  if (const UniqueFd score(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)); score) {
    [[maybe_unused]] const ssize_t wrote = write(score.get(), "500", 3);
  }
  // A build asks for the same megabytes again and again: they stay with the process instead of being mapped anew.
  mallopt(M_MMAP_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  enter_sandbox();
}

/// The worker's end of its conversation with the daemon. Threading: send from any thread, receive from one.
class Conversation {
 public:
  explicit Conversation(int socket) : m_socket(socket) {}

  /// Leaves where the daemon is gone.
  void send(const job::JobMessage& message) {
    const auto bytes = job::encode(message);
    const std::scoped_lock lock(m_mutex);
    if (!send_all(m_socket, bytes, k_no_deadline).ok()) _exit(0);
  }

  /// Errors: invalid_argument when it is something else.
  template <typename Message>
  Expected<Message> receive() {
    KILN_ASSIGN_OR_RETURN(job::JobMessage message, receive_any());
    if (auto* expected = std::get_if<Message>(&message)) return std::move(*expected);
    return invalid_argument("the daemon sent kind {}", message.index());
  }

 private:
  Expected<job::JobMessage> receive_any() {
    FrameReader reader(limits::k_frame_bytes);
    std::vector<uint8_t> buffer(size_t{256} << 10);
    for (;;) {
      KILN_ASSIGN_OR_RETURN(const size_t got, receive_some(m_socket, buffer, k_no_deadline));
      if (got == 0) _exit(0);  // the daemon has changed its mind, or is gone
      auto bytes = std::span<const uint8_t>(buffer).first(got);
      bool whole = false;
      Frame frame;
      KILN_RETURN_IF_ERROR(reader.feed(bytes, whole, frame));
      if (whole) return job::decode(frame);
    }
  }

  const int m_socket;
  std::mutex m_mutex;  // of sending
};

/// The daemon knows who else builds, and has the sources.
class DaemonSupply final : public CodeSupply {
 public:
  explicit DaemonSupply(Conversation& daemon) : m_daemon(daemon) {}

  Expected<CodeAnswer> ask(std::span<const Digest> keys, bool waits, bool judges) override {
    m_daemon.send(job::CodeQuestion{{keys.begin(), keys.end()}, waits, judges});
    return m_daemon.receive<CodeAnswer>();
  }
  Expected<std::vector<SuppliedEntry>> find(std::span<const Digest> keys, ArtifactKind kind, bool raced) override {
    m_daemon.send(job::EntryQuestion{{keys.begin(), keys.end()}, kind, raced});
    KILN_ASSIGN_OR_RETURN(job::EntryAnswer answer, m_daemon.receive<job::EntryAnswer>());
    return std::move(answer.entries);
  }
  Status give(std::vector<SuppliedCode> made) override {
    m_daemon.send(job::MadeCode{std::move(made)});
    return {};
  }

 private:
  Conversation& m_daemon;
};

/// Errors: not_found when this host has no device of the target. Only the host's own processor is asked here: drivers are
/// opened in execution workers.
Expected<std::unique_ptr<CandidateRunner>> runner_for(const Target& target, const WorkerLimits& limits,
                                                      const BufferArenas& arenas) {
  const RuntimeBackend* backend = find_runtime_backend(target.backend);
  if (backend == nullptr) return error(StatusCode::unimplemented, "this build has no backend {}", target.backend);
  if (backend == &host_backend()) {
    const auto index = device_for(*backend, target);
    if (!index) return error(StatusCode::not_found, "this host's processor does not run {}", to_string(target));
    const DeviceDescription& host = backend->discover().devices[*index];
    ProcessRunner::Options options{.memory_max_bytes = limits.memory_max_bytes, .arenas = &arenas};
    options.timed_threads = target.threads != 0 ? target.threads : static_cast<uint32_t>(usable_cores());
    // Code for a lesser target than the best is made for other processors.
    if (host.targets.front() == target.for_all_threads()) options.machine = host.machine;
    return ProcessRunner::create(std::move(options));
  }
  auto runner = ProcessRunner::create({.target = target, .arenas = &arenas});
  // A driver in the target says that the asker has such a device: then it has to be there for us too.
  const bool is_absent = runner.status().code() == StatusCode::not_found;
  if (is_absent && !target.driver.empty()) return error(StatusCode::unavailable, "{}", runner.status().message());
  return runner;
}

/// Runners that nobody uses right now. To end one takes as long as to unmap all that candidates ran on: who waits for the
/// build does not wait for that. Threading: any thread.
class IdleRunners {
 public:
  std::unique_ptr<CandidateRunner> take(const Target& target) {
    const std::scoped_lock lock(m_mutex);
    const auto found = std::ranges::find(m_idle, target, &Idle::target);
    if (found == m_idle.end()) return nullptr;
    auto runner = std::move(found->runner);
    m_idle.erase(found);
    return runner;
  }
  void give(const Target& target, std::unique_ptr<CandidateRunner> runner) {
    const std::scoped_lock lock(m_mutex);
    m_idle.push_back({target, std::move(runner)});
  }

 private:
  struct Idle {
    Target target;
    std::unique_ptr<CandidateRunner> runner;
  };
  std::mutex m_mutex;
  std::vector<Idle> m_idle;
};

Expected<BuildResult> build_job(Conversation& daemon, const WorkerLimits& limits, const BufferArenas& arenas,
                                const ThreadBudget& threads, const BuildFunction& build, IdleRunners& idle) {
  KILN_ASSIGN_OR_RETURN(const auto request, daemon.receive<BuildRequest>());
  if (std::ranges::all_of(request.targets, is_of_host)) forbid_what_drivers_need();
  const ProgressFunction progress = [&](std::string_view stage, uint64_t done, uint64_t total, std::string_view item) {
    daemon.send(job::JobProgress{std::string(stage), std::string(item), done, total});
  };
  DaemonSupply supply(daemon);
  const RunnerFactory make_runner = [&](const Target& target) -> Expected<std::unique_ptr<CandidateRunner>> {
    if (auto known = idle.take(target)) return known;
    return runner_for(target, limits, arenas);
  };
  try {
    return build(request,
                 {.make_runner = make_runner,
                  .done_with = [&idle](const Target& target, auto runner) { idle.give(target, std::move(runner)); },
                  .progress = progress,
                  .keep = [&daemon](BuildResult found) { daemon.send(job::Found{std::move(found)}); },
                  .threads = [&threads] { return threads.share(); },
                  .most_runners =
                      [](const Target& target) {
                        return is_of_host(target) ? std::numeric_limits<size_t>::max() : limits::k_device_runners;
                      },
                  .supply = &supply});
  } catch (const std::bad_alloc&) {
    return error(StatusCode::resource_exhausted, "the build needs more than {} bytes of memory",
                 limits.memory_max_bytes);
  } catch (const std::exception& problem) {  // a library's; ours throw nothing
    return error(StatusCode::internal, "the build threw: {}", problem.what());
  }
}

}  // namespace

void run_compile_worker(UniqueFd socket, pid_t parent, const WorkerLimits& limits, const BufferArenas& arenas,
                        const ThreadBudget& threads, const BuildFunction& build) {
  const BufferArenas own_arenas = arenas.reopened();
  bound_process(parent, limits);
  Conversation daemon(socket.get());
  bool is_sent = false;
  {
    IdleRunners idle;
    Expected<BuildResult> result = build_job(daemon, limits, own_arenas, threads, build, idle);
    const auto bytes = result ? job::encode(std::move(*result)) : job::encode(job::JobFailure{result.status()});
    is_sent = send_all(socket.get(), bytes, k_no_deadline).ok();
  }
  _exit(is_sent ? 0 : 1);
}

}  // namespace kiln
