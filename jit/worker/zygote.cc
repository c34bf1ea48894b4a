#include "jit/worker/zygote.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "jit/worker/send_struct.h"

extern char** environ;

namespace kiln {

enum class ZygoteOrder : uint32_t { fork = 1, finish = 2, abandon = 3, leave = 4 };

namespace {

constexpr int k_zygote_socket = 3;
constexpr uint64_t k_answer_timeout_ms = 30'000;  // the first answer waits for the warm-up
constexpr int k_idle_ms = 5'000;                  // after which memory that nobody holds is given back
constexpr size_t k_most_leavers = 16;             // before the oldest is killed

struct Request {
  ZygoteOrder order = ZygoteOrder::fork;
  int32_t pid = 0;
};
struct Reply {
  int32_t pid = 0;  // or -errno
  int32_t wait_status = 0;
};

/// Blocks for the next request; false when the daemon is gone.
bool receive_request(Request& request, UniqueFd& fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec part{&request, sizeof request};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = -1;
  do {
    got = recvmsg(k_zygote_socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
    fd.reset(received);
  }
  return got == sizeof request;
}

/// The group goes before its leader is reaped: until then its number cannot be another's.
void kill_worker(pid_t pid) {
  kill(-pid, SIGKILL);
  kill(pid, SIGKILL);  // it may not have made its group yet
}

/// Workers that nobody waits for: they were killed, or have given their answer and tidy up.
class Leavers {
 public:
  void add(pid_t pid) {
    m_pids.push_back(pid);
    if (m_pids.size() > k_most_leavers) kill_worker(m_pids[m_pids.size() - 1 - k_most_leavers]);
  }
  void reap() {
    std::erase_if(m_pids, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
  }
  void kill_all() const {
    for (const pid_t pid : m_pids) kill_worker(pid);
  }

 private:
  std::vector<pid_t> m_pids;  // not reaped yet
};

/// Until there is a request, or the daemon is gone.
void wait_for_request(const BufferArenas& arenas, Leavers& leavers) {
  pollfd socket{k_zygote_socket, POLLIN, 0};
  if (poll(&socket, 1, k_idle_ms) != 0) return;
  leavers.reap();
  leavers.kill_all();
  arenas.release();
  poll(&socket, 1, -1);
}

Reply finish_worker(pid_t pid) {
  kill_worker(pid);
  int status = 0;
  pid_t reaped = -1;
  do {
    reaped = waitpid(pid, &status, 0);
  } while (reaped < 0 && errno == EINTR);
  return reaped == pid ? Reply{pid, status} : Reply{-errno, 0};
}

/// The daemon's own, with large pages for the heap: a build touches hundreds of megabytes once.
std::vector<char*> zygote_environment() {
  static char large_pages[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
  std::vector<char*> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.push_back(*each);
  if (getenv("GLIBC_TUNABLES") == nullptr) variables.push_back(large_pages);
  variables.push_back(nullptr);
  return variables;
}

uint64_t number_argument(const char* text) { return std::strtoull(text, nullptr, 10); }

}  // namespace

int zygote_main(int argc, char** argv, const std::function<void()>& warm_up, const BuildFunction& build) {
  if (argc != 6 || std::string_view(argv[1]) != "--zygote") return 2;
  const pid_t daemon = static_cast<pid_t>(number_argument(argv[2]));
  const WorkerLimits limits{number_argument(argv[3]), number_argument(argv[4])};
  ThreadBudget threads(number_argument(argv[5]));
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != daemon) return 0;  // it died before prctl could tell
  fcntl(k_zygote_socket, F_SETFD, FD_CLOEXEC);
  close_range(k_zygote_socket + 1, ~0U, 0);  // what the daemon had open (its clients!) is not the workers' to keep
  if (warm_up) warm_up();
  const BufferArenas arenas;

  const pid_t self = getpid();
  Request request;
  UniqueFd job_socket;
  Leavers leavers;
  while (wait_for_request(arenas, leavers), receive_request(request, job_socket)) {
    Reply reply;
    leavers.reap();
    if (request.order == ZygoteOrder::finish) {
      reply = finish_worker(request.pid);
      threads.end_build();
    } else if (request.order == ZygoteOrder::abandon || request.order == ZygoteOrder::leave) {
      if (request.order == ZygoteOrder::abandon) kill_worker(request.pid);
      threads.end_build();
      leavers.add(request.pid);
    } else if (!job_socket) {
      reply.pid = -EINVAL;
    } else {
      threads.begin_build();
      const pid_t pid = fork();
      if (pid == 0) {
        close(k_zygote_socket);
        run_compile_worker(std::move(job_socket), self, limits, arenas, threads, build);
      }
      reply.pid = pid > 0 ? pid : -errno;
      if (pid < 0) threads.end_build();
    }
    job_socket.reset();
    if (!send_struct(k_zygote_socket, &reply, sizeof reply, -1)) break;
  }
  return 0;
}

Zygote::~Zygote() { kill_all(); }

Status Zygote::warm() {
  const std::scoped_lock lock(m_mutex);
  return m_pid < 0 ? start() : Status();
}

Expected<Zygote::Worker> Zygote::fork_worker() {
  const std::scoped_lock lock(m_mutex);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return error(StatusCode::resource_exhausted, "socketpair: {}", std::strerror(errno));
  }
  Worker worker;
  worker.socket.reset(pair[0]);
  const UniqueFd theirs(pair[1]);
  // A zygote may have died since (out of memory, say): the second one is fresh.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (m_pid < 0) KILN_RETURN_IF_ERROR(start());
    const Request request{ZygoteOrder::fork, 0};
    Reply reply;
    if (send_struct(m_socket.get(), &request, sizeof request, theirs.get())) {
      const auto got = receive_some(m_socket.get(), {reinterpret_cast<uint8_t*>(&reply), sizeof reply},
                                    deadline_in(k_answer_timeout_ms));
      if (got.ok() && *got == sizeof reply) {
        if (reply.pid < 0)
          return error(StatusCode::resource_exhausted, "fork of a compile worker: {}", std::strerror(-reply.pid));
        worker.pid = reply.pid;
        worker.incarnation = m_incarnation;
        return worker;
      }
    }
    stop();
  }
  return error(StatusCode::unavailable, "{} does not run", m_options.program);
}

int Zygote::finish(const Worker& worker) { return end(worker, ZygoteOrder::finish); }

void Zygote::abandon(const Worker& worker) { end(worker, ZygoteOrder::abandon); }

void Zygote::leave(const Worker& worker) { end(worker, ZygoteOrder::leave); }

int Zygote::end(const Worker& worker, ZygoteOrder order) {
  const std::scoped_lock lock(m_mutex);
  if (m_pid < 0 || worker.incarnation != m_incarnation) return 0;
  const Request request{order, worker.pid};
  Reply reply;
  if (send_struct(m_socket.get(), &request, sizeof request, -1)) {
    const auto got = receive_some(m_socket.get(), {reinterpret_cast<uint8_t*>(&reply), sizeof reply},
                                  deadline_in(k_answer_timeout_ms));
    if (got.ok() && *got == sizeof reply) return reply.wait_status;
  }
  stop();
  return 0;
}

void Zygote::kill_all() {
  const std::scoped_lock lock(m_mutex);
  m_is_over = true;
  stop();
}

Status Zygote::start() {
  if (m_is_over) {
    return error(StatusCode::unavailable, "{} is not started again: the daemon is leaving; the next one builds",
                 m_options.program);
  }
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return error(StatusCode::resource_exhausted, "socketpair: {}", std::strerror(errno));
  }
  UniqueFd ours(pair[0]);
  const UniqueFd theirs(pair[1]);
  std::string arguments[] = {m_options.program,
                             "--zygote",
                             std::to_string(getpid()),
                             std::to_string(m_options.limits.memory_max_bytes),
                             std::to_string(m_options.limits.cpu_max_seconds),
                             std::to_string(m_options.threads)};
  char* argv[] = {arguments[0].data(),
                  arguments[1].data(),
                  arguments[2].data(),
                  arguments[3].data(),
                  arguments[4].data(),
                  arguments[5].data(),
                  nullptr};
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, theirs.get(), k_zygote_socket);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const std::vector<char*> environment = zygote_environment();
  const int failure = posix_spawn(&m_pid, m_options.program.c_str(), &files, &attributes, argv, environment.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) {
    m_pid = -1;
    return error(StatusCode::unavailable, "starting {}: {}", m_options.program, std::strerror(failure));
  }
  m_socket = std::move(ours);
  ++m_incarnation;
  return {};
}

/// Its workers die with it (PDEATHSIG).
void Zygote::stop() {
  m_socket.reset();
  if (m_pid < 0) return;
  kill(m_pid, SIGKILL);
  while (waitpid(m_pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  m_pid = -1;
}

}  // namespace kiln
