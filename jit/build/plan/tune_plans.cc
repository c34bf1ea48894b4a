#include "jit/build/plan/tune_plans.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "autotune/machine_lock.h"
#include "autotune/race.h"
#include "backends/schedule_bytes.h"
#include "jit/build/kernels/kernel_builder.h"
#include "jit/build/link/link.h"
#include "jit/build/plan/plan_trial.h"

namespace kiln {

namespace {

/// The specs that each of the plans launches equally often.
std::set<Digest> common_specs(std::span<const Plan* const> plans) {
  std::set<Digest> common;
  const auto first = launches_by_spec(*plans.front());
  for (const auto& [spec, count] : first) {
    bool is_in_all = true;
    for (const Plan* plan : plans) {
      const auto counts = launches_by_spec(*plan);
      const auto found = counts.find(spec);
      is_in_all = is_in_all && found != counts.end() && found->second == count;
    }
    if (is_in_all) common.insert(spec);
  }
  return common;
}

/// "plan with gemm_f32_64x128x96_nn": the first kernel that not all plans have.
std::string name_of(const Plan& plan, const std::set<Digest>& common) {
  const auto own = std::ranges::find_if(
      plan.launches, [&](const Launch& launch) { return !common.contains(plan.digests[launch.spec]); });
  return own == plan.launches.end() ? "plan" : "plan with " + kernel_name(plan.specs[own->spec]);
}

/// One race between plans of a region, the incumbent's first.
class PlanRace {
 public:
  PlanRace(const RegionClass& region, const BuildTarget& target, Published& published,
           const BuildEnvironment& environment, const ChosenKernels& chosen)
      : m_region(region), m_target(target), m_published(published), m_environment(environment), m_chosen(chosen) {}

  void add(const Plan& plan, std::span<const KernelChoice> kernels) {
    m_plans.push_back(&plan);
    m_kernels.emplace_back(kernels.begin(), kernels.end());
  }

  /// The number of the plan that wins: the incumbent's where it cannot be judged or timed, as the record says then.
  size_t run(const BestSoFar& note_best) {
    judge_all();
    if (!m_entrants.front().status.ok()) return 0;
    const TakeSample take_sample = [&](size_t plan, double expected) { return m_trials[plan]->sample(expected); };
    const auto winner = race_alone(m_entrants, take_sample, note_best, m_host);
    return winner.ok() ? *winner : 0;
  }

  TuningRecord record(std::string name, std::string machine, size_t winner) const {
    TuningRecord record{std::move(name), std::move(machine), m_host, static_cast<uint32_t>(winner), {}};
    for (size_t i = 0; i < m_plans.size(); ++i) {
      record.candidates.push_back(TuningRecord::Candidate::of(m_entrants[i], encode_choices(m_plans[i]->choices)));
    }
    return record;
  }

 private:
  void judge_all() {
    const auto undisturbing = MachineLock::shared();
    const std::set<Digest> common = common_specs(m_plans);
    for (size_t i = 0; i < m_plans.size(); ++i) {
      Entrant& entrant = m_entrants.emplace_back();
      entrant.description = to_string(m_plans[i]->choices);
      auto trial = judge(*m_plans[i], m_kernels[i]);
      entrant.status = trial.status();
      m_trials.push_back(trial.ok() ? std::optional(std::move(*trial)) : std::nullopt);
      if (m_trials.back()) m_trials.back()->leave_out(common);
    }
  }

  Expected<PlanTrial> judge(const Plan& plan, std::span<const KernelChoice> kernels) {
    std::vector<Digest> codes;
    std::vector<Image> images;
    for (const KernelChoice& kernel : kernels) {
      codes.push_back(kernel.code);
      KILN_ASSIGN_OR_RETURN(Image image, image_of(kernel.code, m_chosen, m_published));
      images.push_back(std::move(image));
    }
    return PlanTrial::judge(m_region, plan, codes, std::move(images), m_target, m_environment);
  }

  const RegionClass& m_region;
  const BuildTarget& m_target;
  Published& m_published;
  const BuildEnvironment& m_environment;
  const ChosenKernels& m_chosen;
  std::vector<const Plan*> m_plans;
  std::vector<std::vector<KernelChoice>> m_kernels;  // of each
  std::vector<std::optional<PlanTrial>> m_trials;    // of each; none where the plan is wrong
  std::vector<Entrant> m_entrants;
  HostState m_host;
};

/// Adds what was made, and gives the kernels of its plans.
std::vector<std::vector<KernelChoice>> take(ChosenKernels made, ChosenKernels& chosen) {
  std::ranges::move(made.artifacts, std::back_inserter(chosen.artifacts));
  std::ranges::move(made.heads, std::back_inserter(chosen.heads));
  for (auto& row : made.report) chosen.report.push_back(std::move(row));
  chosen.compilations += made.compilations;
  return std::move(made.of_plans);
}

/// Races for the regions of a partition.
class PlanTuning {
 public:
  PlanTuning(const RegionPartition& partition, const BuildTarget& target, Published& published,
             const BuildEnvironment& environment, std::string machine, RegionPlans& regions, ChosenKernels& chosen)
      : m_partition(partition),
        m_target(target),
        m_published(published),
        m_environment(environment),
        m_machine(std::move(machine)),
        m_regions(regions),
        m_chosen(chosen) {}

  /// The plans that race against that of class `index`; none when nothing does.
  std::vector<Plan> rivals(size_t index, bool is_again) const {
    if (m_regions.generations[index] == 0) return m_regions.others[index];
    if (!is_again && take_record(key_of(index), m_published, m_chosen)) return {};
    return other_plans(m_regions.plans[index]);
  }

  void tune(size_t index, std::vector<Plan> rivals, const std::function<void(const std::string&)>& say) {
    const auto start = Clock::now();
    Plan& plan = m_regions.plans[index];
    auto kernels = kernels_of(rivals);
    PlanRace race(m_partition.classes[index], m_target, m_published, m_environment, m_chosen);
    std::vector<const Plan*> field{&plan};
    race.add(plan, m_chosen.of_plans[index]);
    for (size_t i = 0; i < rivals.size(); ++i) {
      field.push_back(&rivals[i]);
      race.add(rivals[i], kernels[i]);
    }
    const std::string name = name_of(plan, common_specs(field));
    say(name);
    const size_t winner =
        race.run([&](double seconds) { say(fmt::format("best {:.3f} ms  {}", seconds * 1e3, name)); });
    // More than the plan had with its kernels: whatever those of the winner have, its plan is a later one.
    const uint32_t generation = m_regions.generations[index] + generation_of(m_chosen.of_plans[index]) + 1;
    keep_record(race.record(name, m_machine, winner), key_of(index), generation - 1, start, m_chosen);
    m_regions.generations[index] = generation;
    m_regions.others[index].clear();
    if (winner > 0) {
      m_chosen.of_plans[index] = std::move(kernels[winner - 1]);
      plan = std::move(rivals[winner - 1]);
    }
    keep(index);
  }

 private:
  /// With the plan, which says what was chosen.
  void keep(size_t index) {
    BuildResult found = m_chosen.news();
    LinkedPlan linked = link_plan(m_regions.plans[index], m_partition.classes[index].digest,
                                  m_regions.generations[index], m_chosen.of_plans[index], m_target);
    found.artifacts.push_back(std::move(linked.artifact));
    found.heads.push_back(std::move(linked.head));
    keep_race(m_environment, std::move(found));
  }

  /// Where they cannot be made there are no rivals, and the report says why.
  std::vector<std::vector<KernelChoice>> kernels_of(std::vector<Plan>& rivals) {
    auto made = choose_kernels(rivals, m_target, m_published, m_environment, m_chosen);
    if (made.ok()) return take(std::move(*made), m_chosen);
    m_chosen.report.push_back({{"name", "plan"}, {"tuned", false}, {"why", made.status().message()}});
    rivals.clear();
    return {};
  }

  Key key_of(size_t index) const {
    return plan_tuning_key(m_partition.classes[index].digest, m_target.target, m_machine);
  }

  const RegionPartition& m_partition;
  const BuildTarget& m_target;
  Published& m_published;
  const BuildEnvironment& m_environment;
  const std::string m_machine;
  RegionPlans& m_regions;
  ChosenKernels& m_chosen;
};

}  // namespace

Expected<uint32_t> tune_plans(const RegionPartition& partition, const BuildTarget& target, Published& published,
                              const BuildEnvironment& environment, const RaceOrder& order, RegionPlans& regions,
                              ChosenKernels& chosen) {
  if (target.target.is_deterministic) return 0;
  KILN_ASSIGN_OR_RETURN(const auto runner, make_runner(environment, target));
  if (runner == nullptr || !runner->times_plans()) return 0;
  std::string machine = to_string(machine_for(target.backend, target.target, runner.get()));
  PlanTuning tuning(partition, target, published, environment, std::move(machine), regions, chosen);
  uint32_t raced = 0;
  for (size_t i = 0; i < regions.plans.size() && (raced == 0 || Clock::now() < order.deadline); ++i) {
    std::vector<Plan> rivals = tuning.rivals(i, order.is_again);
    if (rivals.empty()) continue;
    tuning.tune(i, std::move(rivals),
                [&](const std::string& item) { environment.progress("tune", i, regions.plans.size(), item); });
    ++raced;
  }
  return raced;
}

}  // namespace kiln
