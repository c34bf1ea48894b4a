#include "bench/schedule_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "autotune/machine_lock.h"
#include "autotune/record.h"
#include "backends/cpu/runtime/runtime.h"
#include "jit/build/kernels/kernel_builder.h"
#include "jit/build/kernels/tune_kernels.h"
#include "jit/worker/process_runner.h"
#include "verdict/verdict.h"

namespace kiln::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double k_far_behind = 1.3;  // of the best after a first sample: not sampled again
constexpr uint32_t k_turns = 3;
constexpr size_t k_finalists = 3;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Expected<std::unique_ptr<CandidateRunner>> make_runner(const Target& target) {
  return ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH, .machine = machine(target)});
}

/// What the service's tuner found, and what that cost.
struct Tuned {
  TuningRecord record;
  uint64_t samples = 0;
  double seconds = 0;
};

Expected<Tuned> tune(const Plan& plan, const Target& target) {
  const BuildTarget asked{backend(), target, Proof::verified};
  const BuildEnvironment environment{.make_runner = make_runner};
  Published published("/nonexistent");
  KILN_ASSIGN_OR_RETURN(ChosenKernels chosen, choose_kernels({&plan, 1}, asked, published, environment));
  const auto start = std::chrono::steady_clock::now();
  KILN_ASSIGN_OR_RETURN(const uint32_t raced, tune_kernels({&plan, 1}, asked, published, environment, {}, chosen));
  Tuned tuned{.seconds = seconds_since(start)};
  if (raced != 1) return invalid_argument("{} kernels race, not one: {}", raced, chosen.report.dump());
  const auto made =
      std::ranges::find(chosen.artifacts, static_cast<uint16_t>(ArtifactKind::record), &BuiltArtifact::kind);
  KILN_ASSIGN_OR_RETURN(
      tuned.record, TuningRecord::parse({reinterpret_cast<const char*>(made->payload.data()), made->payload.size()}));
  for (const auto& candidate : tuned.record.candidates) {
    tuned.samples += 1 + candidate.seconds.size() + candidate.disturbed;  // the first one warms up
  }
  return tuned;
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? HUGE_VAL : values[values.size() / 2];
}

/// A schedule's code and the samples of it that count.
struct Contender {
  Schedule schedule;
  Image image;
  std::vector<double> seconds;

  double median() const { return median_of(seconds); }
  /// The median, over turns, of its time to that of another in the same turn: what slows a turn slows both.
  double share_of(const Contender& other) const {
    std::vector<double> shares;
    for (size_t i = 0; i < seconds.size(); ++i) shares.push_back(seconds[i] / other.seconds[i]);
    return median_of(std::move(shares));
  }
};

class Search {
 public:
  Search(const KernelSpec& spec, const Target& target, CandidateRunner& runner)
      : m_stopwatch(runner, machine(target).second_level_bytes) {
    for (const Schedule& schedule : backend().schedules(spec, target, machine(target))) {
      ++m_schedules;
      auto image = backend().compile(spec, schedule, target);
      if (!image.ok()) continue;  // registers spill
      const bool is_known =
          std::ranges::any_of(m_contenders, [&](const Contender& other) { return other.image.code == image->code; });
      if (!is_known) m_contenders.push_back({schedule, std::move(*image), {}});
    }
  }

  /// Those at the front are the ones that were fastest.
  void run() {
    for (uint32_t turn = 0; turn < k_turns; ++turn) {
      const double best = fastest();
      for (Contender& each : m_contenders) {
        if (turn == 0 || each.median() < k_far_behind * best) sample(each);
      }
    }
    std::ranges::stable_sort(m_contenders, {}, &Contender::median);
  }

  /// The same again for some of them, with all turns interleaved and nothing remembered.
  void run_final(const std::vector<Contender*>& finalists, uint32_t turns) {
    for (Contender* each : finalists) each->seconds.clear();
    for (uint32_t turn = 0; turn < turns; ++turn) {
      for (size_t i = 0; i < finalists.size(); ++i) sample(*finalists[(turn + i) % finalists.size()]);
    }
  }

  /// Null for one whose code no schedule makes.
  Contender* find(const std::vector<uint8_t>& schedule) {
    const auto found =
        std::ranges::find(m_contenders, schedule, [](const Contender& each) { return each.schedule.bytes; });
    return found == m_contenders.end() ? nullptr : &*found;
  }
  std::vector<Contender>& contenders() { return m_contenders; }
  size_t schedules() const { return m_schedules; }
  uint64_t samples() const { return m_samples; }

 private:
  double fastest() const {
    double best = HUGE_VAL;
    for (const Contender& each : m_contenders) best = std::min(best, each.median());
    return best;
  }

  void sample(Contender& contender) {
    const double expected = contender.seconds.empty() ? 0 : contender.seconds.back();
    for (int tries = 0; tries < 4; ++tries) {
      const auto alone = MachineLock::exclusive();
      const auto sample = m_stopwatch.sample(contender.image, expected);
      ++m_samples;
      if (sample.ok() && sample->was_disturbed && tries < 3) continue;
      contender.seconds.push_back(sample.ok() ? sample->seconds : HUGE_VAL);
      return;
    }
  }

  Stopwatch m_stopwatch;
  std::vector<Contender> m_contenders;
  size_t m_schedules = 0;
  uint64_t m_samples = 0;
};

Json described(const Contender& contender) {
  return {{"schedule", contender.schedule.description}, {"seconds", contender.median()}};
}

Expected<const KernelSpec*> racing_spec(const Plan& plan, const Target& target) {
  const KernelSpec* found = nullptr;
  for (const KernelSpec& spec : plan.specs) {
    if (!is_tunable(spec, target)) continue;
    if (found != nullptr) return invalid_argument("several kernels race");
    found = &spec;
  }
  if (found == nullptr) return invalid_argument("no kernel races");
  return found;
}

}  // namespace

const cpu::CpuCompileBackend& backend() {
  static const cpu::CpuCompileBackend backend;
  return backend;
}

Machine machine(const Target& target) {
  const DeviceDescription& host = cpu::CpuRuntimeBackend().discover().devices.front();
  return host.targets.front() == target ? host.machine : backend().default_machine(target);
}

Expected<std::string> search(const Plan& plan, const Target& target, uint32_t rounds) {
  KILN_ASSIGN_OR_RETURN(const KernelSpec* spec, racing_spec(plan, target));
  KILN_ASSIGN_OR_RETURN(const Tuned tuned, tune(plan, target));

  const auto start = std::chrono::steady_clock::now();
  KILN_ASSIGN_OR_RETURN(const auto runner, make_runner(target));
  KILN_ASSIGN_OR_RETURN(const CandidateTrial trial, CandidateTrial::prepare(*spec, *runner));
  Search search(*spec, target, *runner);
  search.run();
  const double seconds = seconds_since(start);

  const auto& candidates = tuned.record.candidates;
  Contender* const pick = search.find(candidates[tuned.record.winner].schedule);
  Contender* const first = search.find(candidates.front().schedule);
  if (pick == nullptr || first == nullptr) return error(StatusCode::internal, "the tuner's pick is of no schedule");
  std::vector<Contender*> finalists{pick};
  for (Contender& each : search.contenders()) {
    if (&each != pick && finalists.size() <= k_finalists) finalists.push_back(&each);
  }
  if (std::ranges::find(finalists, first) == finalists.end()) finalists.push_back(first);
  const auto samples = search.samples();
  search.run_final(finalists, rounds);

  const Contender& best =
      **std::ranges::min_element(finalists, {}, [&](const Contender* each) { return each->share_of(*pick); });
  return Json{{"kernel", kernel_name(*spec)},
              {"schedules", search.schedules()},
              {"distinct", search.contenders().size()},
              {"candidates", candidates.size()},
              {"pick", described(*pick)},
              {"best", described(best)},
              {"best_to_pick", best.share_of(*pick)},
              {"best_to_analytic", best.share_of(*first)},
              {"analytic", described(*first)},
              {"tuner", {{"samples", tuned.samples}, {"seconds", tuned.seconds}}},
              {"search", {{"samples", samples}, {"seconds", seconds}}}}
      .dump();
}

}  // namespace kiln::bench
