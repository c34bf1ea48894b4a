#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/expected.h"
#include "verdict/candidate_runner.h"

namespace kiln {

/// What one sample of a candidate says.
struct TimeSample {
  double seconds = 0;          // of one repetition: the median of the sample's
  bool was_disturbed = false;  // in most repetitions a thread lost its processor, or the host took one away
  double spread = 0;           // the width of the middle half of the repetitions, as a share of the median
  uint32_t threads = 0;        // that it ran on
};

/// Takes samples of candidates of one kernel, or of kernels that run one after another, on as many threads as programs
/// have, each repetition with cold caches of the cores' own: in a program other kernels run in between.
///
/// Ownership: refers to the runner, on which the buffers were prepared and filled. Threading: one thread at a time.
class Stopwatch {
 public:
  /// A sample is as many repetitions as fit into this, and at least one. [seconds]
  static constexpr double k_sample_seconds = 0.02;

  struct Options {
    uint64_t swept_bytes = 0;                    // what a core caches for itself
    uint32_t timeout_ms = 15'000;                // of processor time, after which a candidate hangs
    std::string processor_times = "/proc/stat";  // where the kernel says what the host took away
  };
  Stopwatch(CandidateRunner& runner, Options options) : m_runner(&runner), m_options(std::move(options)) {}

  /// `expected_seconds`: of one repetition, 0 when nothing is known: then one is made.
  /// Errors: those of CandidateRunner::time.
  Expected<TimeSample> sample(const Image& image, double expected_seconds);
  Expected<TimeSample> sample(std::span<const TimedLaunch> launches, double expected_seconds);

 private:
  template <typename Timed>
  Expected<TimeSample> sample_of(const Timed& timed, double expected_seconds);

  CandidateRunner* m_runner;
  Options m_options;
  bool m_is_fresh = true;
};

}  // namespace kiln
