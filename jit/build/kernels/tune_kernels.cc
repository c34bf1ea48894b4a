#include "jit/build/kernels/tune_kernels.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <unordered_map>

#include "autotune/machine_lock.h"
#include "autotune/race.h"
#include "autotune/record.h"
#include "jit/build/kernels/kernel_builder.h"
#include "jit/build/kernels/near_records.h"
#include "jit/build/kernels/work_items.h"
#include "jit/resolve/key.h"
#include "verdict/verdict.h"

namespace kiln {

namespace {

using Json = nlohmann::ordered_json;

/// How many schedules race, the incumbent's code apart, and how many of these may be from near kernels' races.
constexpr size_t k_most_schedules = 16, k_most_near = 4;

/// A kernel spec that is to race.
struct TuningJob {
  KernelJob kernel;
  Digest spec;
  KernelChoice incumbent;
};

/// The best by the model, and winners of near kernels' races.
std::vector<NearSchedule> schedules_of(const TuningJob& job, const BuildTarget& target, const Machine& machine,
                                       const NearRecords& records) {
  const KernelSpec& spec = job.kernel.spec();
  std::vector<Schedule> listed = target.backend.candidates(spec, target.target, machine);
  std::vector<NearSchedule> near = records.schedules(spec, listed, k_most_near);
  listed.resize(std::min(listed.size(), k_most_schedules - near.size()));
  std::vector<NearSchedule> schedules;
  for (Schedule& schedule : listed) schedules.push_back({std::move(schedule), {}});
  std::ranges::move(near, std::back_inserter(schedules));
  return schedules;
}

/// One race, from candidates to a winner that passed its verdict.
class KernelTuning {
 public:
  KernelTuning(const TuningJob& job, const BuildTarget& target, const NearRecords& records, CandidateRunner& runner,
               Image incumbent, const std::function<size_t()>& threads, const BestSoFar& note_best)
      : m_job(job),
        m_target(target),
        m_runner(runner),
        m_threads(threads),
        m_note_best(note_best),
        m_machine(machine_for(target.backend, target.target, &runner)),
        m_schedules(schedules_of(job, target, m_machine, records)) {
    add("what was chosen before", nullptr, std::move(incumbent));
  }

  Status run() {
    compile_candidates();
    for (;;) {
      KILN_ASSIGN_OR_RETURN(m_winner, race_once());
      if (m_winner == 0) return {};
      const Schedule& schedule = m_candidates[m_winner].made_by->schedule;
      auto built = build_kernel(m_job.kernel, m_target.backend, m_target.target, &m_runner, {&schedule, 1});
      if (built.ok()) {
        m_built = std::move(built).value();
        return {};
      }
      m_entrants[m_winner].status = built.status();  // wrong: the others race again
    }
  }

  /// The winner's code where it is another than the incumbent's.
  std::optional<BuiltArtifact> winning_code() {
    return m_winner == 0 ? std::nullopt : std::optional(std::move(m_built.artifact));
  }
  /// The winner's, in words; empty where only its code is known.
  std::string schedule() const {
    const NearSchedule* made_by = m_candidates[m_winner].made_by;
    return made_by == nullptr ? "" : made_by->schedule.description;
  }
  uint64_t compilations() const { return m_compilations; }

  TuningRecord record() const {
    TuningRecord record{
        kernel_name(m_job.kernel.spec()), to_string(m_machine), m_host, static_cast<uint32_t>(m_winner), {}};
    for (size_t i = 0; i < m_candidates.size(); ++i) {
      const NearSchedule made_by = m_candidates[i].made_by ? *m_candidates[i].made_by : NearSchedule{};
      record.candidates.push_back(TuningRecord::Candidate::of(m_entrants[i], made_by.schedule.bytes, made_by.origin));
    }
    return record;
  }

 private:
  struct Candidate {
    const NearSchedule* made_by = nullptr;  // null: the incumbent, of whom only the code is known
    Image image;
  };

  void add(std::string description, const NearSchedule* made_by, Image image) {
    m_candidates.push_back({made_by, std::move(image)});
    m_entrants.emplace_back().description = std::move(description);
  }

  /// On the threads that the build may have, before anything is timed. Two schedules that make the same code race once.
  void compile_candidates() {
    const auto undisturbing = MachineLock::shared();
    std::vector<Expected<Image>> images(m_schedules.size(), error(StatusCode::unknown, "not compiled"));
    WorkItems(m_schedules.size(), m_threads).run([&](size_t item, WorkItems& items) {
      for (std::optional<size_t> i = item; i; i = items.next()) {
        images[*i] = m_target.backend.compile(m_job.kernel.spec(), m_schedules[*i].schedule, m_target.target);
      }
    });
    m_compilations = m_schedules.size();
    for (size_t i = 0; i < images.size(); ++i) {
      const bool is_known = images[i].ok() && std::ranges::any_of(m_candidates, [&](const Candidate& candidate) {
                              return candidate.image.code == images[i]->code;
                            });
      if (is_known) {
        name_incumbent(images[i]->code, m_schedules[i]);
        continue;
      }
      const std::string& description = m_schedules[i].schedule.description;
      add(description, &m_schedules[i], images[i].ok() ? std::move(*images[i]) : Image{});
      if (!images[i].ok()) m_entrants.back().status = images[i].status();
    }
  }

  void name_incumbent(const std::vector<uint8_t>& code, const NearSchedule& made_by) {
    Candidate& incumbent = m_candidates.front();
    if (incumbent.made_by != nullptr || incumbent.image.code != code) return;
    incumbent.made_by = &made_by;
    m_entrants.front().description = made_by.schedule.description;
  }

  Expected<size_t> race_once() {
    KILN_ASSIGN_OR_RETURN(const CandidateTrial trial, CandidateTrial::prepare(m_job.kernel.spec(), m_runner));
    Stopwatch stopwatch(m_runner, {m_machine.second_level_bytes});
    const TakeSample take_sample = [&](size_t candidate, double expected) {
      return stopwatch.sample(m_candidates[candidate].image, expected);
    };
    return race_alone(m_entrants, take_sample, m_note_best, m_host);
  }

  const TuningJob& m_job;
  const BuildTarget& m_target;
  CandidateRunner& m_runner;
  const std::function<size_t()>& m_threads;
  const BestSoFar& m_note_best;
  const Machine m_machine;
  const std::vector<NearSchedule> m_schedules;
  std::vector<Candidate> m_candidates;
  std::vector<Entrant> m_entrants;  // each candidate as one
  size_t m_winner = 0;
  BuiltKernel m_built;
  uint64_t m_compilations = 0;
  HostState m_host;
};

/// The distinct tunable specs.
std::vector<TuningJob> jobs_of(std::span<const Plan> plans, const BuildTarget& target, const ChosenKernels& chosen) {
  std::unordered_map<Digest, bool> seen;
  std::vector<TuningJob> jobs;
  for (size_t p = 0; p < plans.size(); ++p) {
    for (const Launch& launch : plans[p].launches) {
      const Digest& spec = plans[p].digests[launch.spec];
      const bool races = is_tunable(plans[p].specs[launch.spec], target.target);
      if (!races || !seen.try_emplace(spec, true).second) continue;
      const Key key = code_key(spec, target.target,
                               target.backend.toolchain_of(plans[p].specs[launch.spec], target.target), target.proof);
      jobs.push_back({{key.digest(), key.to_json(), &plans[p], &launch}, spec, chosen.of_plans[p][launch.spec]});
    }
  }
  return jobs;
}

/// The record's digest.
Digest add_record(std::string_view json, std::string kernel, const Key& key, uint32_t generation,
                  ChosenKernels& chosen) {
  BuiltArtifact record = named_artifact(ArtifactKind::record, {}, {json.begin(), json.end()});
  chosen.heads.push_back({key.digest(), record.digest, generation, key.to_json(), std::move(kernel)});
  chosen.artifacts.push_back(std::move(record));
  return chosen.artifacts.back().digest;
}

void replace(std::span<const Plan> plans, const Digest& spec, const KernelChoice& choice, ChosenKernels& chosen) {
  for (size_t p = 0; p < plans.size(); ++p) {
    for (size_t i = 0; i < plans[p].digests.size(); ++i) {
      if (plans[p].digests[i] == spec) chosen.of_plans[p][i] = choice;
    }
  }
}

/// Takes from `jobs` those that have raced on this machine. Where the record is there and the winner is not, other sources
/// may have it.
Status take_raced(CodeSupply* supply, std::span<const Plan> plans, const BuildTarget& target,
                  const std::string& machine, Published& published, std::vector<TuningJob>& jobs,
                  ChosenKernels& chosen) {
  std::vector<Digest> records, winners;
  for (const TuningJob& job : jobs) records.push_back(tuning_key(job.spec, target.target, machine).digest());
  published.ask_for_records(records);
  std::erase_if(jobs, [&](const TuningJob& job) {
    const Key record = tuning_key(job.spec, target.target, machine);
    if (job.incumbent.generation > 0) return take_record(record, published, chosen);
    if (published.record(record.digest())) winners.push_back(job.kernel.key);
    return false;
  });
  if (supply == nullptr || winners.empty()) return {};
  KILN_ASSIGN_OR_RETURN(auto found, supply->find(winners, ArtifactKind::code, /*raced=*/true));
  for (SuppliedEntry& winner : found) {
    const auto job = std::ranges::find(jobs, winner.key, [](const TuningJob& each) { return each.kernel.key; });
    const bool is_of_race =
        job != jobs.end() && take_record(tuning_key(job->spec, target.target, machine), published, chosen);
    if (!is_of_race) continue;
    replace(plans, job->spec, {winner.artifact.digest, winner.generation}, chosen);
    chosen.heads.push_back(code_head(job->kernel, winner.artifact.digest, winner.generation, {}));
    chosen.artifacts.push_back(std::move(winner.artifact));
    jobs.erase(job);
  }
  return {};
}

/// Races one kernel and puts what came of it into `chosen`.
Status tune(const TuningJob& job, std::span<const Plan> plans, const BuildTarget& target, Published& published,
            const std::string& machine, CandidateRunner& runner, const std::function<size_t()>& threads,
            const BestSoFar& note_best, ChosenKernels& chosen) {
  const auto start = Clock::now();
  KILN_ASSIGN_OR_RETURN(Image incumbent, image_of(job.incumbent.code, chosen, published));
  NearRecords records(target.target, machine, published, chosen);
  KernelTuning tuning(job, target, records, runner, std::move(incumbent), threads, note_best);
  KILN_RETURN_IF_ERROR(tuning.run());

  KernelChoice choice{job.incumbent.code, job.incumbent.generation + 1};
  if (auto code = tuning.winning_code()) {
    choice.code = code->digest;
    chosen.artifacts.push_back(std::move(*code));
  }
  chosen.heads.push_back(code_head(job.kernel, choice.code, choice.generation, tuning.schedule()));
  chosen.compilations += tuning.compilations();
  replace(plans, job.spec, choice, chosen);

  const Key key = tuning_key(job.spec, target.target, machine);
  records.add(job.kernel.spec(), keep_record(tuning.record(), key, choice.generation - 1, start, chosen));
  return {};
}

}  // namespace

Digest keep_record(const TuningRecord& record, const Key& key, uint32_t generation, Clock::time_point start,
                   ChosenKernels& chosen) {
  const Digest digest = add_record(record.to_json(), record.kernel, key, generation, chosen);
  chosen.report.push_back({{"name", record.kernel},
                           {"tuned", true},
                           {"candidates", record.candidates.size()},
                           {"schedule", record.candidates[record.winner].description},
                           {"gain", record.gain()},
                           {"seconds", std::chrono::duration<double>(Clock::now() - start).count()}});
  return digest;
}

void keep_race(const BuildEnvironment& environment, BuildResult found) {
  found.raced = 1;
  environment.keep(std::move(found));
}

bool take_record(const Key& key, Published& published, ChosenKernels& chosen) {
  const auto kept = published.record(key.digest());
  if (!kept) return false;
  const auto record = TuningRecord::parse(kept->json);
  if (record.ok() && kept->is_elsewhere) add_record(kept->json, record->kernel, key, kept->generation, chosen);
  return record.ok();
}

bool is_tunable(const KernelSpec& spec, const Target& target) {
  const bool has_choices =
      !std::holds_alternative<LoopsSpec>(spec.kernel) && !std::holds_alternative<SortSpec>(spec.kernel);
  return has_choices && !target.is_deterministic;
}

Expected<uint32_t> tune_kernels(std::span<const Plan> plans, const BuildTarget& target, Published& published,
                                const BuildEnvironment& environment, const RaceOrder& order, ChosenKernels& chosen) {
  KILN_ASSIGN_OR_RETURN(const auto runner, make_runner(environment, target));
  if (runner == nullptr) return 0;  // no such device here: nothing can be timed
  const std::string machine = to_string(machine_for(target.backend, target.target, runner.get()));
  std::vector<TuningJob> jobs = jobs_of(plans, target, chosen);
  if (!order.is_again) {
    KILN_RETURN_IF_ERROR(take_raced(environment.supply, plans, target, machine, published, jobs, chosen));
  }
  uint32_t raced = 0;
  size_t next = 0;
  for (; next < jobs.size() && (next == 0 || Clock::now() < order.deadline); ++next) {
    const std::string name = kernel_name(jobs[next].kernel.spec());
    environment.progress("tune", next, jobs.size(), name);
    const BestSoFar note_best = [&](double seconds) {
      environment.progress("tune", next, jobs.size(), fmt::format("best {:.3f} ms  {}", seconds * 1e3, name));
    };
    const Status status =
        tune(jobs[next], plans, target, published, machine, *runner, environment.threads, note_best, chosen);
    if (!status.ok()) {
      chosen.report.push_back({{"name", name}, {"tuned", false}, {"why", status.message()}});
      continue;
    }
    ++raced;
    keep_race(environment, chosen.news());
  }
  environment.progress("tune", next, jobs.size(), {});
  return raced;
}

}  // namespace kiln
