#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "base/expected.h"
#include "verdict/sample_pool.h"

namespace kiln {

/// What one execution of a candidate left behind.
struct CandidateRun {
  LaunchStatus status = LaunchStatus::ok;
  bool red_zones_intact = true;  // nothing was written outside the buffers
  std::vector<double> seconds;   // wall time of each repetition
};

/// How long a candidate took, repetition by repetition.
struct CandidateTimes {
  std::vector<double> seconds;
  std::vector<bool> was_disturbed;  // one of its threads lost its processor meanwhile
  uint32_t threads = 0;             // that it ran on
};

/// Memory for one buffer of a kernel.
struct CandidateBuffer {
  uint64_t size_bytes = 0;
  /// What the candidate only reads: these bytes, which it cannot change. Without one the memory is for the caller to
  /// fill.
  SampleSource source;
  /// How far past a multiple of 64 the memory without a source begins.
  uint64_t offset_bytes = 0;
};

/// Where an argument of a launch lies: `bytes` bytes of prepared buffer `buffer`, from byte `offset` on.
struct LaunchArgument {
  uint32_t buffer = 0;
  uint64_t offset = 0, bytes = 0;
  SampleSource source = {};  // where there is one: these bytes instead, which the launch can only read
};

/// A kernel of several that are timed together, over prepared buffers. Refers to both.
struct TimedLaunch {
  const Image* image = nullptr;
  std::span<const LaunchArgument> arguments;
};

/// Runs candidates away from the caller: in a process that may hang, crash or scribble without harm. The
/// caller never maps the candidate's code; it shares only the data.
///
/// Use: prepare once per kernel, fill the inputs, run each candidate, read the outputs.
/// Threading: one thread at a time.
class CandidateRunner {
 public:
  virtual ~CandidateRunner() = default;

  /// Shared memory for buffers, 64-byte aligned where nothing else is asked for: what has a source is read-only, the rest
  /// lies between red zones and holds nothing defined. Valid until the next prepare.
  virtual Expected<std::vector<std::span<uint8_t>>> prepare(std::span<const CandidateBuffer> buffers) = 0;

  /// Runs every task of `image` `repetitions` times over the prepared buffers, on as many threads as the runner has; or
  /// one task in `task_step` and the last, where the host's grid is cut into tasks; the last alone where the step is as
  /// long as the grid. `extents` are those that a launch of the kernel carries, at most limits::k_launch_extents.
  /// `timeout_ms` is of processor time where the host runs it: a busy machine is no hang.
  /// Errors: deadline_exceeded when it hangs, aborted when it crashes (names the signal) or loses a device, resource_exhausted
  /// without memory for it, failed_precondition for what the worker refuses; the next run works.
  virtual Expected<CandidateRun> run(const Image& image, uint32_t timeout_ms, uint32_t repetitions,
                                     uint32_t task_step = 1, std::span<const int64_t> extents = {}) = 0;

  /// Runs every task of `image` `repetitions` times over copies of the prepared buffers in memory of the runner's own, each
  /// with pages of its own as a program's tensors have; before each repetition every thread touches `swept_bytes` bytes of
  /// other memory. The copies are made when `is_fresh`, and kept for the next call otherwise.
  /// Errors: as run; unimplemented by a runner that cannot time.
  virtual Expected<CandidateTimes> time([[maybe_unused]] const Image& image, [[maybe_unused]] uint32_t timeout_ms,
                                        [[maybe_unused]] uint32_t repetitions, [[maybe_unused]] uint64_t swept_bytes,
                                        [[maybe_unused]] bool is_fresh) {
    return error(StatusCode::unimplemented, "this runner times nothing");
  }

  /// Runs these kernels one after another, `repetitions` times, and times each repetition as a whole: over the prepared
  /// buffers themselves, and over copies of those that have a source; with sweeping and copies as above. At most
  /// limits::k_timed_launches.
  /// Errors: as time; invalid_argument for an argument outside its buffer.
  virtual Expected<CandidateTimes> time([[maybe_unused]] std::span<const TimedLaunch> launches,
                                        [[maybe_unused]] uint32_t timeout_ms, [[maybe_unused]] uint32_t repetitions,
                                        [[maybe_unused]] uint64_t swept_bytes, [[maybe_unused]] bool is_fresh) {
    return error(StatusCode::unimplemented, "this runner times nothing");
  }
  /// Whether it can time kernels that run one after another.
  virtual bool times_plans() const { return false; }

  /// Runs every task of `image` once, or one in `task_step`, as a launch of a program that has one prepared buffer for each
  /// of its tensors. Red zones are not looked at: a program asks once, when it has ended.
  /// Errors: as run; invalid_argument for an argument outside its buffer; unimplemented by a runner of single kernels.
  virtual Expected<CandidateRun> launch([[maybe_unused]] const Image& image,
                                        [[maybe_unused]] std::span<const LaunchArgument> arguments,
                                        [[maybe_unused]] std::span<const int64_t> extents,
                                        [[maybe_unused]] uint32_t timeout_ms, [[maybe_unused]] uint32_t task_step = 1) {
    return error(StatusCode::unimplemented, "this runner runs no programs");
  }
  /// Whether the host's processor runs them. There arguments of a launch may be the same memory, since programs make outputs where
  /// inputs lie, and code has one way for all addresses.
  virtual bool is_of_host() const { return false; }
  /// What schedules of the candidates should be made for; null where that is the target's default machine.
  virtual const Machine* machine() const { return nullptr; }
  /// Whether all that lies between the buffers is as it was prepared.
  virtual bool red_zones_intact() const { return true; }
};

}  // namespace kiln
