#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "base/expected.h"

namespace kiln {

/// What one execution of a candidate left behind.
struct CandidateRun {
  LaunchStatus status = LaunchStatus::ok;
  bool red_zones_intact = true;  // nothing was written outside the buffers
  std::vector<double> seconds;   // wall time of each repetition, all tasks on one thread
};

/// Runs candidates away from the caller: in a process that may hang, crash or scribble without harm. The
/// caller never maps the candidate's code; it shares only the data.
///
/// Use: prepare once per kernel, fill the inputs, run each candidate, read the outputs.
/// Threading: one thread at a time.
class CandidateRunner {
 public:
  virtual ~CandidateRunner() = default;

  /// Shared memory for buffers of these sizes, 64-byte aligned, each between red zones. What they hold is
  /// undefined; they are valid until the next prepare.
  virtual Expected<std::vector<std::span<uint8_t>>> prepare(std::span<const uint64_t> sizes_bytes) = 0;

  /// Runs every task of `image` `repetitions` times over the prepared buffers.
  /// Errors: deadline_exceeded when it hangs, aborted when it crashes (names the signal); the next run works.
  virtual Expected<CandidateRun> run(const Image& image, uint32_t timeout_ms, uint32_t repetitions) = 0;
};

}  // namespace kiln
