// The execution worker of a device: opens the device of one target and runs candidates on it.
//
// A process of its own, because a driver may crash, hang, or refuse to work again after a kernel that faulted: whoever
// started it ends it and starts another. It judges nothing. The data come in shared memory; a copy of all of it, red
// zones included, goes to the device and comes back, so that what a kernel wrote outside its buffers is seen there.
// Driver calls need more of the system than a list of permissions could name, so there is no sandbox beyond the compile
// worker's, which this inherits; unlike there, address space is not bounded: drivers reserve more than there is memory.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>

#include "backends/devices.h"
#include "base/fd.h"
#include "jit/run/device_memory.h"
#include "jit/worker/executor_wire.h"
#include "jit/worker/send_struct.h"
#include "verdict/repeated_mapping.h"

namespace kiln {
namespace {

void say(kiln_executor_reply& reply, kiln_executor_result result, const Status& why) {
  reply.result = result;
  std::snprintf(reply.message, sizeof reply.message, "%s", why.message().c_str());
}

Status system_error(std::string_view what) {
  return error(StatusCode::resource_exhausted, "{}: {}", what, std::strerror(errno));
}

/// False when the parent is gone or talks nonsense.
bool receive(kiln_executor_request& request, UniqueFd& descriptor) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec part{&request, sizeof request};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = 0;
  do got = recvmsg(KILN_EXECUTOR_SOCKET, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    descriptor.reset(fd);
  }
  return got == sizeof request && request.magic == KILN_EXECUTOR_MAGIC && descriptor;
}

/// A descriptor's memory, mapped as long as this lives.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, size_t bytes, int protection, int flags) : m_bytes(bytes) {
    void* address = mmap(nullptr, bytes, protection, flags, fd, 0);
    m_address = address == MAP_FAILED ? nullptr : static_cast<uint8_t*>(address);
  }
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(m_address, other.m_address);
    std::swap(m_bytes, other.m_bytes);
    return *this;
  }
  ~Mapping() {
    if (m_address != nullptr) munmap(m_address, m_bytes);
  }

  uint8_t* get() const { return m_address; }
  size_t size() const { return m_bytes; }

 private:
  uint8_t* m_address = nullptr;
  size_t m_bytes = 0;
};

/// A file repeated behind itself (verdict/repeated_mapping.h), mapped as long as this lives.
class Repeated {
 public:
  static Expected<Repeated> create(int fd, uint64_t file_bytes, const kiln_executor_buffer& buffer) {
    Repeated repeated;
    repeated.m_bytes = buffer.bytes;
    if (kiln_map_repeatedly(&repeated.m_mapping, fd, file_bytes, buffer.offset, buffer.bytes, true) != 0) {
      return system_error("mapping an input");
    }
    return repeated;
  }
  Repeated(Repeated&& other) noexcept { *this = std::move(other); }
  Repeated& operator=(Repeated&& other) noexcept {
    std::swap(m_mapping, other.m_mapping);
    std::swap(m_bytes, other.m_bytes);
    return *this;
  }
  ~Repeated() { kiln_unmap_repeated(&m_mapping); }

  std::span<const uint8_t> bytes() const { return {m_mapping.first, m_bytes}; }

 private:
  Repeated() = default;

  kiln_repeated_mapping m_mapping{};
  uint64_t m_bytes = 0;
};

/// One device, with the data of the last DATA request.
class Executor {
 public:
  static Expected<Executor> open(const Target& target) {
    const RuntimeBackend* backend = find_runtime_backend(target.backend);
    if (backend == nullptr) return error(StatusCode::not_found, "this build has no backend {}", target.backend);
    const auto index = device_for(*backend, target);
    if (!index) {
      const Status& why = backend->discover().status;
      return error(StatusCode::not_found, "no device of {}{}{}", to_string(target), why.ok() ? "" : ": ",
                   why.message());
    }
    Executor executor;
    KILN_ASSIGN_OR_RETURN(executor.m_device, backend->open(*index));
    KILN_ASSIGN_OR_RETURN(executor.m_queue, executor.m_device->create_queue());
    const DeviceDescription& description = backend->discover().devices[*index];
    if (description.targets.front() == target) executor.m_machine = description.machine;
    return executor;
  }

  bool has_lost_device() const { return !m_queue->synchronise().ok(); }

  /// Of the device, where the target is the best it runs: code for a lesser one is made for others.
  const std::optional<Machine>& machine() const { return m_machine; }

  Status set_data(const kiln_executor_request& request, const UniqueFd& fd) {
    m_timed.reset();
    m_data = Mapping(fd.get(), request.bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
    return m_data.get() != nullptr ? Status() : system_error("mapping the data");
  }

  Status keep_pool(const kiln_executor_request& request, UniqueFd fd) {
    if (request.pool >= KILN_EXECUTOR_POOLS) return invalid_argument("no such pool");
    m_pools[request.pool] = {std::move(fd), request.bytes};
    return {};
  }

  Status run(const kiln_executor_request& request, const UniqueFd& fd, kiln_executor_reply& reply) {
    if (request.buffer_count > KILN_EXECUTOR_BUFFERS || request.extent_count > KILN_EXECUTOR_EXTENTS ||
        request.repetitions > KILN_EXECUTOR_REPETITIONS || request.used_bytes > m_data.size()) {
      return invalid_argument("request out of bounds");
    }
    for (uint32_t i = 0; i < request.buffer_count; ++i) {
      const kiln_executor_buffer& buffer = request.buffers[i];
      const bool is_alone = request.used_bytes == 0;  // a launch of a program: only its buffers travel
      const uint64_t end = is_alone ? m_data.size() : request.used_bytes, bytes = is_alone ? buffer.bytes : 0;
      if (buffer.pool == KILN_EXECUTOR_NO_POOL && (buffer.offset > end || bytes > end - buffer.offset)) {
        return invalid_argument("buffer {} is out of bounds", i);
      }
    }
    const Mapping code(fd.get(), request.bytes, PROT_READ, MAP_PRIVATE);
    if (code.get() == nullptr) return system_error("mapping the code");
    const Image launch_data{{}, request.entry, request.tasks, request.workspace_bytes, request.features};
    KILN_ASSIGN_OR_RETURN(const auto kernel, m_device->load_whole(launch_data, {code.get(), code.size()}));
    if (kernel->device() == nullptr) return invalid_argument("code for the host on a device");
    if (request.command == KILN_EXECUTOR_TIME) return time(request, *kernel->device(), reply);
    return run(request, *kernel->device(), reply);
  }

 private:
  static constexpr uint64_t k_alignment = 64;

  /// An input that repeats a pool: the candidate may not change its copy on the device.
  struct Input {
    uint32_t index;
    Repeated host;
    DeviceMemory memory;
    uint64_t shift;
    uint8_t* address() const { return memory.get() + shift; }
  };

  /// A buffer of a program's launch, apart from the rest of the program's memory.
  struct Alone {
    kiln_executor_buffer buffer;
    uint32_t index;
    DeviceMemory memory;
    uint8_t* address() const { return memory.get() + buffer.offset % k_alignment; }
  };

  /// All that a launch may touch but its workspace, on the device.
  struct Copies {
    DeviceMemory data, status;
    std::vector<Input> inputs;
    std::vector<Alone> alone;
  };

  Expected<Copies> upload(const kiln_executor_request& request) {
    const LaunchStatus good = LaunchStatus::ok;
    Copies copies;
    KILN_ASSIGN_OR_RETURN(copies.data, DeviceMemory::allocate(*m_device, request.used_bytes));
    KILN_ASSIGN_OR_RETURN(copies.status, DeviceMemory::allocate(*m_device, sizeof good));
    KILN_ASSIGN_OR_RETURN(copies.inputs, upload_inputs(request));
    KILN_ASSIGN_OR_RETURN(copies.alone, upload_alone(request));
    KILN_RETURN_IF_ERROR(m_queue->upload(copies.data.get(), m_data.get(), request.used_bytes));
    KILN_RETURN_IF_ERROR(m_queue->upload(copies.status.get(), &good, sizeof good));
    KILN_RETURN_IF_ERROR(m_queue->synchronise());
    return copies;
  }

  Expected<DeviceMemory> poisoned_workspace(const kiln_executor_request& request) {
    constexpr uint8_t k_poison = 0xff;  // NaN in every float format; an index far outside
    const std::vector<uint8_t> poison(request.workspace_bytes, k_poison);
    KILN_ASSIGN_OR_RETURN(DeviceMemory workspace, DeviceMemory::allocate(*m_device, request.workspace_bytes));
    KILN_RETURN_IF_ERROR(m_queue->upload(workspace.get(), poison.data(), poison.size()));
    return workspace;
  }

  Status launch(const kiln_executor_request& request, const DeviceExecutable& kernel, const Copies& copies,
                const DeviceMemory& workspace) {
    void* buffers[KILN_EXECUTOR_BUFFERS];
    for (uint32_t i = 0; i < request.buffer_count; ++i) buffers[i] = copies.data.get() + request.buffers[i].offset;
    for (const Input& input : copies.inputs) buffers[input.index] = input.address();
    for (const Alone& each : copies.alone) buffers[each.index] = each.address();
    return kernel.launch(*m_queue, buffers, workspace.get(), copies.status.get(),
                         std::span(request.extents, request.extent_count));
  }

  /// Keeps one time for each repetition, of which `put` puts one on the queue.
  template <typename Before>
  Status repeat(const kiln_executor_request& request, const std::function<Status()>& put, Before before,
                kiln_executor_reply& reply) {
    for (uint32_t i = 0; i < request.repetitions; ++i) {
      KILN_RETURN_IF_ERROR(before());
      KILN_ASSIGN_OR_RETURN(const double seconds, m_queue->seconds_of(put));
      reply.nanoseconds[i] = static_cast<uint64_t>(seconds * 1e9);
    }
    reply.repetitions = request.repetitions;
    return {};
  }

  Status run(const kiln_executor_request& request, const DeviceExecutable& kernel, kiln_executor_reply& reply) {
    m_timed.reset();  // there may not be room for both
    KILN_ASSIGN_OR_RETURN(const Copies copies, upload(request));
    KILN_ASSIGN_OR_RETURN(const DeviceMemory workspace, poisoned_workspace(request));
    const auto put = [&] { return launch(request, kernel, copies, workspace); };
    KILN_RETURN_IF_ERROR(repeat(request, put, [] { return Status(); }, reply));
    KILN_RETURN_IF_ERROR(m_queue->download(m_data.get(), copies.data.get(), request.used_bytes));
    for (const Alone& each : copies.alone) {
      const kiln_executor_buffer& buffer = each.buffer;
      KILN_RETURN_IF_ERROR(m_queue->download(m_data.get() + buffer.offset, each.address(), buffer.bytes));
    }
    KILN_RETURN_IF_ERROR(m_queue->download(&reply.launch_status, copies.status.get(), sizeof reply.launch_status));
    KILN_RETURN_IF_ERROR(m_queue->synchronise());
    return check_inputs(copies.inputs);
  }

  /// On copies that stay for the next time. A launch that does not count comes first: what is loaded lazily is there then.
  Status time(const kiln_executor_request& request, const DeviceExecutable& kernel, kiln_executor_reply& reply) {
    if (request.is_fresh != 0 || !m_timed) {
      m_timed.reset();
      KILN_ASSIGN_OR_RETURN(m_timed, upload(request));
    }
    KILN_ASSIGN_OR_RETURN(const DeviceMemory workspace, poisoned_workspace(request));
    const auto put = [&] { return launch(request, kernel, *m_timed, workspace); };
    KILN_RETURN_IF_ERROR(put());
    reply.threads = 1;
    return repeat(request, put, [&] { return sweep(request.swept_bytes); }, reply);
  }

  /// Drives out of the device's cache what it holds.
  Status sweep(uint64_t bytes) {
    if (bytes > m_swept_bytes) {
      m_swept = {};
      m_swept_bytes = 0;
      KILN_ASSIGN_OR_RETURN(m_swept, DeviceMemory::allocate(*m_device, bytes));
      m_swept_bytes = bytes;
    }
    return bytes < 2 ? Status() : m_queue->copy(m_swept.get() + bytes / 2, m_swept.get(), bytes / 2);
  }

  /// Nothing for a single candidate, whose buffers travel with all that lies between them.
  Expected<std::vector<Alone>> upload_alone(const kiln_executor_request& request) {
    std::vector<Alone> alone;
    for (uint32_t i = 0; request.used_bytes == 0 && i < request.buffer_count; ++i) {
      const kiln_executor_buffer& buffer = request.buffers[i];
      if (buffer.pool != KILN_EXECUTOR_NO_POOL) continue;
      KILN_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::allocate(*m_device, buffer.bytes + k_alignment));
      alone.push_back({buffer, i, std::move(memory)});
      KILN_RETURN_IF_ERROR(m_queue->upload(alone.back().address(), m_data.get() + buffer.offset, buffer.bytes));
    }
    return alone;
  }

  Expected<std::vector<Input>> upload_inputs(const kiln_executor_request& request) {
    std::vector<Input> inputs;
    for (uint32_t i = 0; i < request.buffer_count; ++i) {
      const kiln_executor_buffer& buffer = request.buffers[i];
      if (buffer.pool == KILN_EXECUTOR_NO_POOL) continue;
      if (buffer.pool >= KILN_EXECUTOR_POOLS || !m_pools[buffer.pool].fd) return invalid_argument("no such pool");
      const Pool& pool = m_pools[buffer.pool];
      KILN_ASSIGN_OR_RETURN(Repeated host, Repeated::create(pool.fd.get(), pool.bytes, buffer));
      const uint64_t shift = buffer.offset % k_alignment;  // memory of a device is aligned, an input need not be
      KILN_ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::allocate(*m_device, buffer.bytes + shift));
      KILN_RETURN_IF_ERROR(m_queue->upload(memory.get() + shift, host.bytes().data(), buffer.bytes));
      inputs.push_back({i, std::move(host), std::move(memory), shift});
    }
    return inputs;
  }

  Status check_inputs(const std::vector<Input>& inputs) {
    std::vector<uint8_t> copy;
    for (const Input& input : inputs) {
      const std::span<const uint8_t> sent = input.host.bytes();
      copy.resize(sent.size());
      KILN_RETURN_IF_ERROR(m_queue->download(copy.data(), input.address(), copy.size()));
      KILN_RETURN_IF_ERROR(m_queue->synchronise());
      if (!std::ranges::equal(copy, sent)) {
        return error(StatusCode::internal, "candidate changed its input {}", input.index);
      }
    }
    return {};
  }

  std::optional<Machine> m_machine;
  std::unique_ptr<Device> m_device;
  std::unique_ptr<Queue> m_queue;
  struct Pool {
    UniqueFd fd;
    uint64_t bytes = 0;
  };
  Mapping m_data;
  std::optional<Copies> m_timed;  // of the last TIME
  DeviceMemory m_swept;
  uint64_t m_swept_bytes = 0;
  std::array<Pool, KILN_EXECUTOR_POOLS> m_pools;
};

void send_reply(const kiln_executor_reply& reply) {
  if (!send_struct(KILN_EXECUTOR_SOCKET, &reply, sizeof reply, -1)) std::_Exit(1);
}

Status obey(Executor& executor, const kiln_executor_request& request, UniqueFd descriptor, kiln_executor_reply& reply) {
  switch (request.command) {
    case KILN_EXECUTOR_DATA:
      return executor.set_data(request, descriptor);
    case KILN_EXECUTOR_POOL:
      return executor.keep_pool(request, std::move(descriptor));
    default:
      return executor.run(request, descriptor, reply);
  }
}

kiln_executor_result result_of(const Status& failure, Executor& executor) {
  if (failure.code() == StatusCode::resource_exhausted) return KILN_EXECUTOR_FULL;
  return executor.has_lost_device() ? KILN_EXECUTOR_LOST : KILN_EXECUTOR_REFUSED;
}

[[noreturn]] void serve(Executor& executor) {
  for (;;) {
    kiln_executor_request request{};
    UniqueFd descriptor;
    if (!receive(request, descriptor)) std::_Exit(0);
    kiln_executor_reply reply{};
    reply.magic = KILN_EXECUTOR_MAGIC;
    const Status status = obey(executor, request, std::move(descriptor), reply);
    if (!status.ok()) say(reply, result_of(status, executor), status);
    send_reply(reply);
    if (reply.result == KILN_EXECUTOR_LOST) std::_Exit(0);
  }
}

}  // namespace
}  // namespace kiln

/// argv: the parent's pid, then the target: backend, name, driver.
int main(int argc, char** argv) {
  if (argc != 5) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != static_cast<pid_t>(std::atol(argv[1]))) return 0;  // the parent died before prctl could tell
  rlimit address_space{};
  getrlimit(RLIMIT_AS, &address_space);
  address_space.rlim_cur = address_space.rlim_max;
  setrlimit(RLIMIT_AS, &address_space);

  auto executor = kiln::Executor::open({argv[2], argv[3], argv[4]});
  kiln_executor_reply greeting{};
  greeting.magic = KILN_EXECUTOR_MAGIC;
  if (executor.ok() && executor->machine()) {
    std::snprintf(greeting.message, sizeof greeting.message, "%s", to_string(*executor->machine()).c_str());
  }
  if (!executor.ok()) {
    const bool absent = executor.status().code() == kiln::StatusCode::not_found;
    kiln::say(greeting, absent ? KILN_EXECUTOR_ABSENT : KILN_EXECUTOR_REFUSED, executor.status());
  }
  kiln::send_reply(greeting);
  if (executor.ok()) kiln::serve(*executor);
  std::_Exit(0);
}
