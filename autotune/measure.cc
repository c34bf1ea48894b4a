#include "autotune/measure.h"

#include <algorithm>
#include <chrono>

#include "base/limits.h"
#include "base/processor_times.h"

namespace kiln {

namespace {

constexpr uint32_t k_timeout_ms = 15'000;
// Ticks of 10 ms, on all processors: more than one rounding, and more than a twentieth of the time.
constexpr uint64_t k_stolen_ticks = 2;
constexpr double k_stolen_ticks_a_second = 5;

/// Ticks that the host has taken from this machine's processors; 0 where nothing says.
uint64_t stolen_ticks() {
  const auto times = ProcessorTimes::read();
  return times ? times->stolen : 0;
}

}  // namespace

Expected<TimeSample> Stopwatch::sample(const Image& image, double expected_seconds) {
  return sample_of(image, expected_seconds);
}

Expected<TimeSample> Stopwatch::sample(std::span<const TimedLaunch> launches, double expected_seconds) {
  return sample_of(launches, expected_seconds);
}

template <typename Timed>
Expected<TimeSample> Stopwatch::sample_of(const Timed& timed, double expected_seconds) {
  const double fitting = expected_seconds > 0 ? k_sample_seconds / expected_seconds : 1;
  const auto repetitions = static_cast<uint32_t>(std::clamp(fitting, 1.0, double{limits::k_candidate_repetitions}));
  const uint64_t stolen = stolen_ticks();
  const auto begin = std::chrono::steady_clock::now();
  KILN_ASSIGN_OR_RETURN(CandidateTimes times,
                        m_runner->time(timed, k_timeout_ms, repetitions, m_swept_bytes, m_is_fresh));
  m_is_fresh = false;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const auto allowed = k_stolen_ticks + static_cast<uint64_t>(took.count() * k_stolen_ticks_a_second);
  if (times.seconds.empty()) return error(StatusCode::internal, "nothing was timed");
  const auto middle = times.seconds.begin() + static_cast<std::ptrdiff_t>(times.seconds.size() / 2);
  std::nth_element(times.seconds.begin(), middle, times.seconds.end());
  const auto disturbed = static_cast<size_t>(std::ranges::count(times.was_disturbed, true));
  return TimeSample{*middle, 2 * disturbed > times.seconds.size() || stolen_ticks() - stolen >= allowed};
}

}  // namespace kiln
