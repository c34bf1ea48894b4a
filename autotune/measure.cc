#include "autotune/measure.h"

#include <algorithm>
#include <chrono>

#include "autotune/quantile.h"
#include "base/limits.h"
#include "base/processor_times.h"

namespace kiln {

namespace {

// Ticks of 10 ms, on all processors: more than one rounding, and more than a twentieth of the time.
constexpr uint64_t k_stolen_ticks = 2;
constexpr double k_stolen_ticks_a_second = 5;

/// Ticks that the host has taken from this machine's processors; 0 where nothing says.
uint64_t stolen_ticks(const std::string& path) {
  const auto times = ProcessorTimes::read(path);
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
  const uint64_t stolen = stolen_ticks(m_options.processor_times);
  const auto begin = std::chrono::steady_clock::now();
  KILN_ASSIGN_OR_RETURN(CandidateTimes times,
                        m_runner->time(timed, m_options.timeout_ms, repetitions, m_options.swept_bytes, m_is_fresh));
  m_is_fresh = false;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const auto allowed = k_stolen_ticks + static_cast<uint64_t>(took.count() * k_stolen_ticks_a_second);
  if (times.seconds.empty()) return error(StatusCode::internal, "nothing was timed");
  const auto disturbed = static_cast<size_t>(std::ranges::count(times.was_disturbed, true));
  const bool was_robbed = stolen_ticks(m_options.processor_times) - stolen >= allowed;
  return TimeSample{quantile(times.seconds, 0.5), 2 * disturbed > times.seconds.size() || was_robbed,
                    spread_of(times.seconds), times.threads};
}

}  // namespace kiln
