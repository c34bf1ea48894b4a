#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "base/fd.h"
#include "jit/worker/buffer_arenas.h"
#include "jit/worker/executor_wire.h"
#include "verdict/candidate_runner.h"

namespace kiln {

/// Runs candidates in an execution worker (executor.c; device_executor.cc for targets of a device), a process that it
/// starts, kills and starts again as needed. This process writes the code into a sealed memfd and never maps it, and
/// opens no device.
///
/// Threading: one thread at a time. The worker dies with the thread that last started it (PDEATHSIG) and is
///   then started again by the next run.
/// Cost: about 1 ms to start a worker, tens of microseconds a run beyond the candidate itself.
class ProcessRunner final : public CandidateRunner {
 public:
  struct Options {
    std::string executor_path;      // empty: kiln-executor or kiln-device-executor, beside this program
    Target target;                  // of a device; empty: the host's
    uint64_t memory_max_bytes = 0;  // address space of the worker; 0: no limit
    /// Of the host, where its processor is what schedules are for. The executor of a device says what its device is.
    std::optional<Machine> machine = {};
    const BufferArenas* arenas = nullptr;  // where buffers may lie; outlives the runner
    uint32_t timed_threads = 0;            // of the host, that candidates are timed on; 0: a few
  };

  /// Errors: not_found when this host has no device of the target, with the reason.
  static Expected<std::unique_ptr<CandidateRunner>> create(Options options);
  ~ProcessRunner() override;

  Expected<std::vector<std::span<uint8_t>>> prepare(std::span<const CandidateBuffer> buffers) override;
  Expected<CandidateRun> run(const Image& image, uint32_t timeout_ms, uint32_t repetitions, uint32_t task_step = 1,
                             std::span<const int64_t> extents = {}) override;
  Expected<CandidateTimes> time(const Image& image, uint32_t timeout_ms, uint32_t repetitions, uint64_t swept_bytes,
                                bool is_fresh) override;
  Expected<CandidateTimes> time(std::span<const TimedLaunch> launches, uint32_t timeout_ms, uint32_t repetitions,
                                uint64_t swept_bytes, bool is_fresh) override;
  bool times_plans() const override { return !is_device(); }
  Expected<CandidateRun> launch(const Image& image, std::span<const LaunchArgument> arguments,
                                std::span<const int64_t> extents, uint32_t timeout_ms, uint32_t task_step = 1) override;
  bool red_zones_intact() const override;
  bool is_of_host() const override { return !is_device(); }
  const Machine* machine() const override { return m_options.machine ? &*m_options.machine : nullptr; }

 private:
  explicit ProcessRunner(Options options) : m_options(std::move(options)) {}

  struct Buffer {
    uint64_t offset = 0;  // into the data, or into the pool
    uint64_t size_bytes = 0;
    const SamplePool* pool = nullptr;
    SampleMapping mapping;  // of the pool
  };

  bool is_device() const { return !m_options.target.backend.empty(); }
  Status start();
  Status receive_greeting();
  void stop();
  Status died(std::string_view who, std::string_view when);
  Expected<kiln_executor_request> request_for(const Image& image, std::span<const LaunchArgument> arguments,
                                              std::span<const int64_t> extents);
  Expected<kiln_executor_request> request_for_all(const Image& image, std::span<const int64_t> extents);
  Expected<kiln_executor_reply> execute(const kiln_executor_request& request, const Image& image, uint32_t timeout_ms);
  Expected<kiln_executor_reply> await_reply(uint32_t timeout_ms);
  uint32_t pool_number(const SamplePool* pool);
  Status ensure_capacity();
  Status ensure_memory(uint64_t bytes);
  int data_fd() const { return m_arena ? m_arena.file().get() : m_own_memory.get(); }
  Status send_memory();
  Status send_descriptor(kiln_executor_request request, int fd);
  void unmap();
  void paint_red_zones();
  template <typename Visit>
  void for_each_red_zone(const Visit& visit) const;

  Options m_options;
  pid_t m_pid = -1;
  UniqueFd m_socket;
  bool m_data_sent = false;  // to the worker that lives now

  BufferArenas::Held m_arena;  // where the buffers lie; none: in
  UniqueFd m_own_memory;
  uint64_t m_data_bytes = 0;  // of either
  uint8_t* m_data = nullptr;
  uint64_t m_capacity_bytes = 0;  // of the mapping
  uint64_t m_used_bytes = 0;      // of it, by the buffers prepared last
  std::vector<Buffer> m_buffers;
  std::vector<const SamplePool*> m_pools;  // number i of the executor
  size_t m_pools_sent = 0;                 // to the worker that lives now
};

}  // namespace kiln
