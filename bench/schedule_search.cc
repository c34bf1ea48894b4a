#include "bench/schedule_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "autotune/machine_lock.h"
#include "autotune/measure.h"
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

/// What the service's tuner found, in the order of the plans, and what that cost.
struct Tuned {
  std::vector<TuningRecord> records;
  uint64_t samples = 0;
  double seconds = 0;
};

/// From an empty cache, in one build.
Expected<Tuned> tune(std::span<const Plan> plans, const Target& target, const CompileBackend& by = backend()) {
  const BuildTarget asked{by, target, Proof::verified};
  const BuildEnvironment environment{.make_runner = make_runner};
  Published published("/nonexistent");
  KILN_ASSIGN_OR_RETURN(ChosenKernels chosen, choose_kernels(plans, asked, published, environment));
  const auto start = std::chrono::steady_clock::now();
  KILN_ASSIGN_OR_RETURN(const uint32_t raced, tune_kernels(plans, asked, published, environment, {}, chosen));
  Tuned tuned{.seconds = seconds_since(start)};
  if (raced != plans.size()) return invalid_argument("{} kernels race of {}", raced, plans.size());
  for (const BuiltArtifact& made : chosen.artifacts) {
    if (made.kind != static_cast<uint16_t>(ArtifactKind::record)) continue;
    KILN_ASSIGN_OR_RETURN(TuningRecord record, TuningRecord::parse({reinterpret_cast<const char*>(made.payload.data()),
                                                                    made.payload.size()}));
    for (const auto& candidate : record.candidates) {
      tuned.samples += 1 + candidate.seconds.size() + candidate.disturbed;  // the first one warms up
    }
    tuned.records.push_back(std::move(record));
  }
  return tuned;
}

const TuningRecord::Candidate& winner_of(const TuningRecord& record) { return record.candidates[record.winner]; }

using ListSchedules = std::function<std::vector<Schedule>(const KernelSpec&, const Target&, const Machine&)>;

/// The host's backend with other candidates than its own.
class OtherCandidates final : public CompileBackend {
 public:
  explicit OtherCandidates(ListSchedules list) : m_list(std::move(list)) {}

  std::string_view name() const override { return backend().name(); }
  std::vector<Target> targets() const override { return backend().targets(); }
  Machine default_machine(const Target& target) const override { return backend().default_machine(target); }
  std::string toolchain() const override { return backend().toolchain(); }
  Status claims(const KernelSpec& spec, const Target& target) const override { return backend().claims(spec, target); }
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target,
                                   const Machine& machine) const override {
    return m_list(spec, target, machine);
  }
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override {
    return backend().compile(spec, schedule, target);
  }

 private:
  const ListSchedules m_list;
};

/// Those of a model that knows nothing: `count` of all schedules, in an order of chance.
OtherCandidates guesses(size_t count, uint32_t seed) {
  return OtherCandidates([=](const KernelSpec& spec, const Target& target, const Machine& machine) {
    std::vector<Schedule> schedules = backend().schedules(spec, target, machine);
    std::seed_seq seeds{seed, static_cast<uint32_t>(std::hash<std::string>()(kernel_name(spec)))};
    std::ranges::shuffle(schedules, std::mt19937(seeds));
    schedules.resize(std::min(schedules.size(), count));
    return schedules;
  });
}

/// Those of a model that has them the wrong way round.
OtherCandidates worst_first() {
  return OtherCandidates([](const KernelSpec& spec, const Target& target, const Machine& machine) {
    std::vector<Schedule> schedules = backend().candidates(spec, target, machine);
    std::ranges::reverse(schedules);
    return schedules;
  });
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

void add_once(std::vector<Contender*>& finalists, Contender* contender) {
  if (std::ranges::find(finalists, contender) == finalists.end()) finalists.push_back(contender);
}

class Search {
 public:
  Search(const KernelSpec& spec, const Target& target, CandidateRunner& runner, std::span<const Schedule> schedules)
      : m_spec(spec), m_target(target), m_stopwatch(runner, {machine(target).second_level_bytes}) {
    for (const Schedule& schedule : schedules) {
      auto image = backend().compile(spec, schedule, target);
      if (!image.ok()) continue;
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

  /// The one of these bytes, or of the same code. Null where they make none.
  Contender* find(const std::vector<uint8_t>& schedule) {
    const auto image = backend().compile(m_spec, {schedule, {}}, m_target);
    if (!image.ok()) return nullptr;
    const auto has_code = [&](const Contender& each) { return each.image.code == image->code; };
    const auto found = std::ranges::find_if(m_contenders, has_code);
    return found == m_contenders.end() ? nullptr : &*found;
  }
  /// One more, which the model may not list.
  void add(const TuningRecord::Candidate& candidate) {
    if (find(candidate.schedule) != nullptr) return;
    const Schedule schedule{candidate.schedule, candidate.description};
    auto image = backend().compile(m_spec, schedule, m_target);
    if (image.ok()) m_contenders.push_back({schedule, std::move(*image), {}});
  }
  std::vector<Contender>& contenders() { return m_contenders; }
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

  const KernelSpec& m_spec;
  const Target& m_target;
  Stopwatch m_stopwatch;
  std::vector<Contender> m_contenders;
  uint64_t m_samples = 0;
};

Json described(const Contender& contender) {
  return {
      {"schedule", contender.schedule.description}, {"seconds", contender.median()}, {"samples", contender.seconds}};
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
  KILN_ASSIGN_OR_RETURN(const Tuned tuned, tune({&plan, 1}, target));

  const auto start = std::chrono::steady_clock::now();
  KILN_ASSIGN_OR_RETURN(const auto runner, make_runner(target));
  KILN_ASSIGN_OR_RETURN(const CandidateTrial trial, CandidateTrial::prepare(*spec, *runner));
  const std::vector<Schedule> schedules = backend().schedules(*spec, target, machine(target));
  Search search(*spec, target, *runner, schedules);
  search.run();
  const double seconds = seconds_since(start);

  const auto& candidates = tuned.records.front().candidates;
  Contender* const pick = search.find(winner_of(tuned.records.front()).schedule);
  Contender* const first = search.find(candidates.front().schedule);
  if (pick == nullptr || first == nullptr) return error(StatusCode::internal, "the tuner's pick is of no schedule");
  std::vector<Contender*> finalists{pick};
  for (Contender& each : search.contenders()) {
    if (&each != pick && finalists.size() <= k_finalists) finalists.push_back(&each);
  }
  add_once(finalists, first);
  const auto samples = search.samples();
  search.run_final(finalists, rounds);

  const Contender& best =
      **std::ranges::min_element(finalists, {}, [&](const Contender* each) { return each->share_of(*pick); });
  return Json{{"kernel", kernel_name(*spec)},
              {"schedules", schedules.size()},
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

namespace {

/// The winner of the plan's race where it had neighbours, and where it had none, beside the best schedule there is.
Expected<Json> compare(const Plan& plan, const Target& target, const TuningRecord& alone, const TuningRecord& among,
                       uint32_t rounds) {
  KILN_ASSIGN_OR_RETURN(const KernelSpec* spec, racing_spec(plan, target));
  KILN_ASSIGN_OR_RETURN(const auto runner, make_runner(target));
  KILN_ASSIGN_OR_RETURN(const CandidateTrial trial, CandidateTrial::prepare(*spec, *runner));
  Search search(*spec, target, *runner, backend().schedules(*spec, target, machine(target)));
  const auto &first = alone.candidates.front(), &one = winner_of(alone), &other = winner_of(among);
  for (const auto* each : {&first, &one, &other}) search.add(*each);
  search.run();
  std::vector<Contender*> finalists;
  for (const auto* each : {&first, &one, &other}) {
    Contender* const found = search.find(each->schedule);
    if (found == nullptr) return error(StatusCode::internal, "a winner of no schedule");
    add_once(finalists, found);
  }
  for (size_t i = 0; i < std::min(k_finalists, search.contenders().size()); ++i) {
    add_once(finalists, &search.contenders()[i]);
  }
  search.run_final(finalists, rounds);
  const Contender &reference = *search.find(first.schedule),
                  &best = **std::ranges::min_element(finalists, {},
                                                     [&](const Contender* each) { return each->share_of(reference); });
  return Json{{"kernel", kernel_name(*spec)},
              {"best", described(best)},
              {"first", described(reference)},
              {"alone", described(*search.find(one.schedule))},
              {"among", described(*search.find(other.schedule))},
              {"origin", other.origin},
              {"best_to_first", best.share_of(reference)},
              {"best_to_alone", best.share_of(*search.find(one.schedule))},
              {"best_to_among", best.share_of(*search.find(other.schedule))}};
}

}  // namespace

Expected<std::string> search_near(std::span<const Plan> plans, const Target& target, uint32_t rounds, uint32_t guesses,
                                  uint32_t seed) {
  const OtherCandidates by = bench::guesses(guesses, seed);
  std::vector<TuningRecord> alone;
  uint64_t samples = 0;
  for (const Plan& plan : plans) {
    KILN_ASSIGN_OR_RETURN(Tuned tuned, tune({&plan, 1}, target, by));
    alone.push_back(std::move(tuned.records.front()));
    samples += tuned.samples;
  }
  KILN_ASSIGN_OR_RETURN(const Tuned among, tune(plans, target, by));
  Json rows = Json::array();
  for (size_t i = 0; i < plans.size(); ++i) {
    KILN_ASSIGN_OR_RETURN(Json row, compare(plans[i], target, alone[i], among.records[i], rounds));
    rows.push_back(std::move(row));
  }
  return Json{{"rows", std::move(rows)}, {"samples", {{"alone", samples}, {"among", among.samples}}}}.dump();
}

Expected<std::string> search_with_faults(const Plan& plan, const Target& target, uint32_t rounds) {
  KILN_ASSIGN_OR_RETURN(const KernelSpec* spec, racing_spec(plan, target));
  const std::span<const Plan> plans(&plan, 1);
  KILN_ASSIGN_OR_RETURN(const Tuned alone, tune(plans, target));
  Expected<Tuned> beside = [&] {
    const std::jthread neighbour([](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
      }
    });
    return tune(plans, target);
  }();
  KILN_RETURN_IF_ERROR(beside.status());
  KILN_ASSIGN_OR_RETURN(const Tuned planted, tune(plans, target, worst_first()));

  KILN_ASSIGN_OR_RETURN(const auto runner, make_runner(target));
  KILN_ASSIGN_OR_RETURN(const CandidateTrial trial, CandidateTrial::prepare(*spec, *runner));
  const std::pair<std::string, const TuningRecord::Candidate&> meeting[] = {
      {"alone", winner_of(alone.records.front())},
      {"beside a busy loop", winner_of(beside->records.front())},
      {"worst first", winner_of(planted.records.front())},
      {"the last", planted.records.front().candidates.front()}};
  Search search(*spec, target, *runner, {});
  for (const auto& [name, candidate] : meeting) search.add(candidate);
  std::vector<Contender*> finalists;
  for (Contender& each : search.contenders()) finalists.push_back(&each);
  search.run_final(finalists, rounds);
  Json found{{"kernel", kernel_name(*spec)}};
  for (const auto& [name, candidate] : meeting) {
    const Contender& one = *search.find(candidate.schedule);
    found[name] = described(one);
    found[name]["alone_to_it"] = search.find(meeting[0].second.schedule)->share_of(one);
  }
  return found.dump();
}

}  // namespace kiln::bench
