#include "jit/worker/process_runner.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/ceil_div.h"
#include "base/limits.h"
#include "base/memfd.h"
#include "jit/worker/send_struct.h"

namespace kiln {
namespace {

constexpr uint64_t k_red_zone_bytes = 8'192;  // a page and a stride beyond it
constexpr uint64_t k_alignment_bytes = 64;
constexpr uint8_t k_red = 0xa5;
constexpr uint32_t k_start_timeout_ms = 10'000;
constexpr uint64_t k_starved_factor = 20;  // how much longer than its limit a worker may take that gets no processor
constexpr uint64_t k_look_ms = 50;         // least time between two looks at how long a worker ran
constexpr uint32_t k_device_start_timeout_ms = 60'000;  // a driver that meets its device for the first time

static_assert(KILN_EXECUTOR_BUFFERS >= limits::k_kernel_buffers);
static_assert(KILN_EXECUTOR_EXTENTS >= limits::k_launch_extents);
static_assert(KILN_EXECUTOR_POOLS >= 4 * SamplePool::k_kinds, "of each floating dtype");
static_assert(KILN_EXECUTOR_REPETITIONS >= limits::k_candidate_repetitions);
static_assert(KILN_EXECUTOR_STEPS >= limits::k_timed_launches);

Status system_error(std::string_view what) {
  return error(StatusCode::resource_exhausted, "execution worker: {}: {}", what, std::strerror(errno));
}

/// ok with the reply; deadline_exceeded; unavailable when the worker is dead.
Expected<kiln_executor_reply> receive_reply(int socket, Deadline deadline) {
  kiln_executor_reply reply{};
  KILN_ASSIGN_OR_RETURN(const size_t got,
                        receive_some(socket, {reinterpret_cast<uint8_t*>(&reply), sizeof reply}, deadline));
  if (got != sizeof reply || reply.magic != KILN_EXECUTOR_MAGIC || reply.repetitions > KILN_EXECUTOR_REPETITIONS) {
    return error(StatusCode::unavailable, "no reply");
  }
  reply.message[sizeof reply.message - 1] = 0;
  return reply;
}

/// Time that processors spent on a process.
uint64_t processor_ms(pid_t pid) {
  clockid_t clock = 0;
  timespec ran{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &ran) != 0) return 0;
  return static_cast<uint64_t>(ran.tv_sec) * 1000 + static_cast<uint64_t>(ran.tv_nsec) / 1'000'000;
}

std::string why(const kiln_executor_reply& reply) {
  return reply.message[0] != 0 ? reply.message : std::strerror(static_cast<int>(reply.error_number));
}

std::string default_executor(bool is_device) {
  std::error_code failure;
  const char* name = is_device ? "kiln-device-executor" : "kiln-executor";
  return std::filesystem::read_symlink("/proc/self/exe", failure).replace_filename(name).string();
}

CandidateRun run_in(const kiln_executor_reply& reply) {
  CandidateRun run;
  run.status = static_cast<LaunchStatus>(reply.launch_status);
  for (uint32_t i = 0; i < reply.repetitions; ++i) {
    run.seconds.push_back(static_cast<double>(reply.nanoseconds[i]) * 1e-9);
  }
  return run;
}

CandidateTimes times_in(const kiln_executor_reply& reply) {
  CandidateTimes times{run_in(reply).seconds, {}, reply.threads};
  times.was_disturbed.assign(reply.was_disturbed, reply.was_disturbed + reply.repetitions);
  return times;
}

}  // namespace

Expected<std::unique_ptr<CandidateRunner>> ProcessRunner::create(Options options) {
  std::unique_ptr<ProcessRunner> runner(new ProcessRunner(std::move(options)));
  std::string& path = runner->m_options.executor_path;
  if (path.empty()) path = default_executor(runner->is_device());
  KILN_RETURN_IF_ERROR(runner->start());
  return std::unique_ptr<CandidateRunner>(std::move(runner));
}

ProcessRunner::~ProcessRunner() {
  stop();
  if (m_arena && m_capacity_bytes > BufferArenas::k_kept_bytes) m_arena.release_pages(BufferArenas::k_kept_bytes);
  unmap();
}

Expected<std::vector<std::span<uint8_t>>> ProcessRunner::prepare(std::span<const CandidateBuffer> buffers) {
  m_buffers.clear();
  m_used_bytes = k_red_zone_bytes;
  for (const CandidateBuffer& wanted : buffers) {
    Buffer& buffer = m_buffers.emplace_back();
    buffer.size_bytes = wanted.size_bytes;
    if (wanted.source.pool != nullptr) {
      buffer.pool = wanted.source.pool;
      buffer.offset = wanted.source.start_bytes;
      KILN_ASSIGN_OR_RETURN(buffer.mapping, SampleMapping::create(wanted.source, wanted.size_bytes));
    } else {
      buffer.offset = m_used_bytes + wanted.offset_bytes;
      m_used_bytes = round_up(buffer.offset + buffer.size_bytes, k_alignment_bytes) + k_red_zone_bytes;
    }
  }
  KILN_RETURN_IF_ERROR(ensure_capacity());
  paint_red_zones();
  std::vector<std::span<uint8_t>> spans;
  for (const Buffer& buffer : m_buffers) {
    spans.push_back(buffer.pool != nullptr ? buffer.mapping.bytes()
                                           : std::span(m_data + buffer.offset, buffer.size_bytes));
  }
  return spans;
}

/// A mapping that is large enough is used again: the next kernel's buffers need no fresh pages. Its size has three leading
/// bits, so few are made, and none takes much more of the address space than is used.
Status ProcessRunner::ensure_capacity() {
  if (m_used_bytes <= m_capacity_bytes) return {};
  unmap();
  const uint64_t step = std::max<uint64_t>(std::bit_floor(m_used_bytes) / 4, k_red_zone_bytes);
  const uint64_t capacity = round_up(m_used_bytes, step);
  KILN_RETURN_IF_ERROR(ensure_memory(capacity));
  void* address = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, data_fd(), 0);
  if (address == MAP_FAILED) return system_error("mapping buffers");
  m_data = static_cast<uint8_t*>(address);
  m_capacity_bytes = capacity;
  m_data_sent = false;
  return {};
}

/// An arena, where one can be had, is large enough for good.
Status ProcessRunner::ensure_memory(uint64_t bytes) {
  if (bytes <= m_data_bytes) return {};
  if (m_options.arenas != nullptr && !m_arena && bytes <= BufferArenas::k_bytes) {
    m_arena = m_options.arenas->take();
    if (m_arena) return m_data_bytes = BufferArenas::k_bytes, Status();
  }
  m_arena = {};
  KILN_ASSIGN_OR_RETURN(m_own_memory, make_memfd("kiln-buffers"));
  if (ftruncate(m_own_memory.get(), static_cast<off_t>(bytes)) != 0) return system_error("memfd");
  if (fcntl(m_own_memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return system_error("sealing buffers");
  m_data_bytes = bytes;
  return {};
}

uint32_t ProcessRunner::pool_number(const SamplePool* pool) {
  const auto found = std::ranges::find(m_pools, pool);
  if (found == m_pools.end()) m_pools.push_back(pool);
  return static_cast<uint32_t>(std::ranges::find(m_pools, pool) - m_pools.begin());
}

Expected<kiln_executor_request> ProcessRunner::request_for(const Image& image,
                                                           std::span<const LaunchArgument> arguments,
                                                           std::span<const int64_t> extents) {
  if (m_data == nullptr) return error(StatusCode::failed_precondition, "run before prepare");
  if (image.entry >= image.code.size()) {
    return invalid_argument("entry {} is outside the code's {} bytes", image.entry, image.code.size());
  }
  if (arguments.size() > limits::k_kernel_buffers) {
    return error(StatusCode::out_of_range, "{} buffers, at most {}", arguments.size(), limits::k_kernel_buffers);
  }
  if (extents.size() > limits::k_launch_extents) {
    return error(StatusCode::out_of_range, "{} extents, at most {}", extents.size(), limits::k_launch_extents);
  }
  const uint64_t tasks = launch_tasks(image.tasks, extents);
  if (tasks == 0) return invalid_argument("launch data: a launch without tasks");
  kiln_executor_request request{};
  request.magic = KILN_EXECUTOR_MAGIC;
  request.command = KILN_EXECUTOR_RUN;
  request.bytes = image.code.size();
  request.entry = image.entry;
  request.tasks = tasks;
  request.workspace_bytes = image.workspace_bytes;
  request.features = image.features;
  request.repetitions = 1;
  request.task_step = 1;
  request.extent_count = static_cast<uint32_t>(extents.size());
  std::ranges::copy(extents, request.extents);
  request.buffer_count = static_cast<uint32_t>(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const LaunchArgument& argument = arguments[i];
    if (argument.buffer >= m_buffers.size()) return invalid_argument("no buffer {}", argument.buffer);
    const Buffer& buffer = m_buffers[argument.buffer];
    if (argument.offset > buffer.size_bytes || argument.bytes > buffer.size_bytes - argument.offset) {
      return invalid_argument("argument {} ends outside its buffer", i);
    }
    const bool is_elsewhere = argument.source.pool != nullptr;
    const SamplePool* pool = is_elsewhere ? argument.source.pool : buffer.pool;
    const uint64_t offset = is_elsewhere ? argument.source.start_bytes : buffer.offset + argument.offset;
    request.buffers[i] = {pool != nullptr ? offset % SamplePool::k_bytes : offset, argument.bytes,
                          pool != nullptr ? pool_number(pool) : KILN_EXECUTOR_NO_POOL, 0};
  }
  return request;
}

/// For a launch over all buffers as they were prepared.
Expected<kiln_executor_request> ProcessRunner::request_for_all(const Image& image, std::span<const int64_t> extents) {
  std::vector<LaunchArgument> all;
  for (uint32_t i = 0; i < m_buffers.size(); ++i) all.push_back({i, 0, m_buffers[i].size_bytes});
  KILN_ASSIGN_OR_RETURN(kiln_executor_request request, request_for(image, all, extents));
  request.used_bytes = m_used_bytes;
  return request;
}

Expected<CandidateRun> ProcessRunner::run(const Image& image, uint32_t timeout_ms, uint32_t repetitions,
                                          uint32_t task_step, std::span<const int64_t> extents) {
  KILN_ASSIGN_OR_RETURN(kiln_executor_request request, request_for_all(image, extents));
  request.repetitions = std::clamp<uint32_t>(repetitions, 1, limits::k_candidate_repetitions);
  request.task_step = std::max(task_step, 1u);
  KILN_ASSIGN_OR_RETURN(const kiln_executor_reply reply, execute(request, image, timeout_ms));
  CandidateRun result = run_in(reply);
  result.red_zones_intact = red_zones_intact();
  if (!result.red_zones_intact) paint_red_zones();  // the next candidate is judged for itself
  return result;
}

Expected<CandidateRun> ProcessRunner::launch(const Image& image, std::span<const LaunchArgument> arguments,
                                             std::span<const int64_t> extents, uint32_t timeout_ms,
                                             uint32_t task_step) {
  KILN_ASSIGN_OR_RETURN(kiln_executor_request request, request_for(image, arguments, extents));
  request.task_step = std::max(task_step, 1u);
  KILN_ASSIGN_OR_RETURN(const kiln_executor_reply reply, execute(request, image, timeout_ms));
  return run_in(reply);
}

Expected<CandidateTimes> ProcessRunner::time(const Image& image, uint32_t timeout_ms, uint32_t repetitions,
                                             uint64_t swept_bytes, bool is_fresh) {
  KILN_ASSIGN_OR_RETURN(kiln_executor_request request, request_for_all(image, {}));
  request.command = KILN_EXECUTOR_TIME;
  request.threads = m_options.timed_threads;
  request.repetitions = std::clamp<uint32_t>(repetitions, 1, limits::k_candidate_repetitions);
  request.swept_bytes = swept_bytes;
  request.is_fresh = is_fresh ? 1 : 0;
  KILN_ASSIGN_OR_RETURN(const kiln_executor_reply reply, execute(request, image, timeout_ms));
  return times_in(reply);
}

Expected<CandidateTimes> ProcessRunner::time(std::span<const TimedLaunch> launches, uint32_t timeout_ms,
                                             uint32_t repetitions, uint64_t swept_bytes, bool is_fresh) {
  if (is_device()) return error(StatusCode::unimplemented, "launches of a device are not timed together");
  if (launches.size() > limits::k_timed_launches) {
    return error(StatusCode::resource_exhausted, "{} launches, at most {} are timed together", launches.size(),
                 limits::k_timed_launches);
  }
  CandidateTimes times;
  for (uint32_t i = 0; i < launches.size(); ++i) {
    const TimedLaunch& launch = launches[i];
    KILN_ASSIGN_OR_RETURN(kiln_executor_request request, request_for(*launch.image, launch.arguments, {}));
    const bool is_last = i + 1 == launches.size();
    request.command = KILN_EXECUTOR_STEP;
    request.threads = m_options.timed_threads;
    request.place = i;
    request.repetitions = is_last ? std::clamp<uint32_t>(repetitions, 1, limits::k_candidate_repetitions) : 0;
    request.swept_bytes = swept_bytes;
    request.is_fresh = is_fresh ? 1 : 0;
    KILN_ASSIGN_OR_RETURN(const kiln_executor_reply reply, execute(request, *launch.image, timeout_ms));
    if (is_last) times = times_in(reply);
  }
  return times;
}

Expected<kiln_executor_reply> ProcessRunner::execute(const kiln_executor_request& request, const Image& image,
                                                     uint32_t timeout_ms) {
  KILN_ASSIGN_OR_RETURN(const UniqueFd code, sealed_memfd("kiln-candidate", image.code, true));
  // The worker may have died since (with the thread that started it): that is not this candidate's fault.
  bool sent = m_pid > 0 && send_memory().ok() && send_struct(m_socket.get(), &request, sizeof request, code.get());
  if (!sent) {
    KILN_RETURN_IF_ERROR(start());
    KILN_RETURN_IF_ERROR(send_memory());
    sent = send_struct(m_socket.get(), &request, sizeof request, code.get());
  }
  if (!sent) return died("candidate", "before it ran");

  auto reply = await_reply(timeout_ms);
  if (!reply) {
    if (reply.status().code() == StatusCode::deadline_exceeded) {
      stop();
      return error(StatusCode::deadline_exceeded, "candidate did not end within {} ms", timeout_ms);
    }
    return died("candidate", "while it ran");
  }
  if (reply->result == KILN_EXECUTOR_LOST) {
    stop();
    return error(StatusCode::aborted, "candidate lost the device: {}", why(*reply));
  }
  if (reply->result != KILN_EXECUTOR_OK) {
    const bool is_full = reply->result == KILN_EXECUTOR_FULL || reply->error_number == ENOMEM;
    return error(is_full ? StatusCode::resource_exhausted : StatusCode::failed_precondition,
                 "execution worker refused: {}", why(*reply));
  }
  return reply;
}

/// A worker that waits for a processor does not hang: on the host the limit is of the time that it runs.
Expected<kiln_executor_reply> ProcessRunner::await_reply(uint32_t timeout_ms) {
  const uint64_t ran_before_ms = processor_ms(m_pid);
  const Deadline last = deadline_in(uint64_t{timeout_ms} * k_starved_factor);
  uint64_t left_ms = timeout_ms;
  for (;;) {
    auto reply = receive_reply(m_socket.get(), deadline_in(left_ms));
    const uint64_t ran_ms = processor_ms(m_pid) - ran_before_ms;
    const bool is_starved = !is_device() && ran_ms < timeout_ms && Clock::now() < last;
    if (reply || reply.status().code() != StatusCode::deadline_exceeded || !is_starved) return reply;
    left_ms = std::max<uint64_t>(timeout_ms - ran_ms, k_look_ms);
  }
}

Status ProcessRunner::start() {
  stop();
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return system_error("socketpair");
  UniqueFd ours(pair[0]);
  const UniqueFd theirs(pair[1]);
  std::string parent = std::to_string(getpid());
  std::string memory = std::to_string(m_options.memory_max_bytes);
  Target& target = m_options.target;
  char* for_host[] = {m_options.executor_path.data(), parent.data(), memory.data(), nullptr};
  char* for_device[] = {m_options.executor_path.data(), parent.data(), target.backend.data(), target.name.data(),
                        target.driver.data(),           nullptr};
  char* nothing[] = {nullptr};
  char** arguments = is_device() ? for_device : for_host;
  char** environment = is_device() ? environ : nothing;  // drivers are found and set up by it
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, theirs.get(), KILN_EXECUTOR_SOCKET);
  const int failure = posix_spawn(&m_pid, m_options.executor_path.c_str(), &files, nullptr, arguments, environment);
  posix_spawn_file_actions_destroy(&files);
  if (failure != 0) {
    m_pid = -1;
    return error(StatusCode::unavailable, "starting {}: {}", m_options.executor_path, std::strerror(failure));
  }
  m_socket = std::move(ours);
  m_data_sent = false;
  m_pools_sent = 0;
  return is_device() ? receive_greeting() : Status();
}

Status ProcessRunner::receive_greeting() {
  const auto reply = receive_reply(m_socket.get(), deadline_in(k_device_start_timeout_ms));
  if (reply.ok() && reply->result == KILN_EXECUTOR_OK) {
    if (auto machine = parse_machine(reply->message); machine.ok()) m_options.machine = std::move(machine).value();
    return {};
  }
  if (reply.ok()) {
    stop();
    return error(reply->result == KILN_EXECUTOR_ABSENT ? StatusCode::not_found : StatusCode::unavailable, "{}",
                 why(*reply));
  }
  if (reply.status().code() == StatusCode::deadline_exceeded) {
    stop();
    return error(StatusCode::deadline_exceeded, "{} was not opened within {} ms", to_string(m_options.target),
                 k_device_start_timeout_ms);
  }
  return died("driver", "while it opened " + to_string(m_options.target));
}

void ProcessRunner::stop() {
  m_socket.reset();
  if (m_pid <= 0) return;
  kill(m_pid, SIGKILL);
  while (waitpid(m_pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  m_pid = -1;
}

/// Reaps the worker that closed its socket, and says what ended it.
Status ProcessRunner::died(std::string_view who, std::string_view when) {
  int status = 0;
  while (waitpid(m_pid, &status, 0) < 0 && errno == EINTR) {
  }
  m_pid = -1;
  m_socket.reset();
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return error(StatusCode::aborted, "{} died of signal {} ({}) {}", who, signal, strsignal(signal), when);
  }
  return error(StatusCode::aborted, "{} ended its process with {} {}", who, WEXITSTATUS(status), when);
}

/// What the worker does not have yet: the buffers' memory, the pools.
Status ProcessRunner::send_memory() {
  kiln_executor_request request{};
  request.magic = KILN_EXECUTOR_MAGIC;
  if (!m_data_sent) {
    request.command = KILN_EXECUTOR_DATA;
    request.bytes = m_capacity_bytes;
    KILN_RETURN_IF_ERROR(send_descriptor(request, data_fd()));
    m_data_sent = true;
  }
  for (; m_pools_sent < m_pools.size(); ++m_pools_sent) {
    request.command = KILN_EXECUTOR_POOL;
    request.bytes = SamplePool::k_bytes;
    request.pool = static_cast<uint32_t>(m_pools_sent);
    KILN_RETURN_IF_ERROR(send_descriptor(request, m_pools[m_pools_sent]->fd()));
  }
  return {};
}

Status ProcessRunner::send_descriptor(kiln_executor_request request, int fd) {
  if (!send_struct(m_socket.get(), &request, sizeof request, fd)) return error(StatusCode::unavailable, "no worker");
  KILN_ASSIGN_OR_RETURN(const kiln_executor_reply reply,
                        receive_reply(m_socket.get(), deadline_in(k_start_timeout_ms)));
  if (reply.result != KILN_EXECUTOR_OK) {
    return error(StatusCode::resource_exhausted, "execution worker cannot map {} bytes: {}", request.bytes, why(reply));
  }
  return {};
}

void ProcessRunner::unmap() {
  if (m_data != nullptr) munmap(m_data, m_capacity_bytes);
  m_data = nullptr;
  m_capacity_bytes = 0;
}

/// Each gap: from one buffer's last byte (alignment included) to the next one's first.
template <typename Visit>
void ProcessRunner::for_each_red_zone(const Visit& visit) const {
  uint64_t begin = 0;
  for (const Buffer& buffer : m_buffers) {
    if (buffer.pool != nullptr) continue;
    visit(begin, buffer.offset);
    begin = buffer.offset + buffer.size_bytes;
  }
  visit(begin, m_used_bytes);
}

void ProcessRunner::paint_red_zones() {
  for_each_red_zone([&](uint64_t begin, uint64_t end) { std::memset(m_data + begin, k_red, end - begin); });
}

bool ProcessRunner::red_zones_intact() const {
  bool intact = true;
  for_each_red_zone([&](uint64_t begin, uint64_t end) {
    intact = intact && std::all_of(m_data + begin, m_data + end, [](uint8_t byte) { return byte == k_red; });
  });
  return intact;
}

}  // namespace kiln
