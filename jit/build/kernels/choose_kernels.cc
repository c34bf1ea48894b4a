#include "jit/build/kernels/choose_kernels.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "jit/build/kernels/kernel_builder.h"
#include "jit/build/kernels/tune_kernels.h"
#include "jit/resolve/key.h"

namespace kiln {

namespace {

/// Gives the jobs what was compiled for them where its verdict had to be deferred.
Status take_deferred(CodeSupply* supply, const BuildTarget& target, Published& published,
                     std::vector<KernelJob>& jobs) {
  if (target.proof == Proof::deferred) return {};
  std::unordered_map<Digest, KernelJob*> elsewhere;
  for (KernelJob& job : jobs) {
    if (job.made_before) continue;
    const Digest key = code_key(job.content(), target.target, {}, Proof::deferred).digest();
    job.made_before = published.image(key);
    if (!job.made_before) elsewhere.emplace(key, &job);
  }
  if (supply == nullptr || elsewhere.empty()) return {};
  std::vector<Digest> keys;
  for (const auto& [key, job] : elsewhere) keys.push_back(key);
  KILN_ASSIGN_OR_RETURN(const auto found, supply->find(keys, ArtifactKind::code, /*raced=*/false));
  for (const SuppliedEntry& each : found) {
    if (const auto job = elsewhere.find(each.key); job != elsewhere.end()) {
      job->second->made_before = image_in(each.artifact);
    }
  }
  return {};
}

void add_code(const KernelJob& job, uint32_t generation, BuiltArtifact artifact, ChosenKernels& chosen,
              std::string schedule = {}) {
  chosen.heads.push_back(code_head(job, artifact.digest, generation, std::move(schedule)));
  chosen.artifacts.push_back(std::move(artifact));
}

nlohmann::ordered_json report_of(const KernelJob& job, const BuiltKernel& kernel) {
  return {{"name", kernel_name(job.spec())},
          {"key", job.key.to_hex()},
          {"schedule", kernel.schedule},
          {"compilations", kernel.compilations},
          {"code_bytes", kernel.artifact.payload.size()},
          {"compile_ms", kernel.compile_ms},
          {"verify_ms", kernel.verify_ms},
          {"run_ms", kernel.run_ms},
          {"error_of_tolerance", kernel.max_error},
          {"elements_checked", kernel.checked},
          {"tiles", kernel.tiles},
          {"tiles_checked", kernel.tiles_met}};
}

/// Whether a verdict here says all that is promised of code: not that its bits are those of the target's first pick.
bool can_judge(const BuildTarget& target) { return target.proof == Proof::verified && !target.target.is_deterministic; }

/// Takes from others what they have of the jobs' code. The jobs whose code another build makes right now are given; what is
/// left of `jobs` is to be made here, or judged.
Expected<std::vector<KernelJob>> take_supplied(CodeSupply* supply, bool waits, const BuildTarget& target,
                                               std::vector<KernelJob>& jobs, ChosenKernels& chosen) {
  std::vector<KernelJob> elsewhere;
  if (supply == nullptr || jobs.empty()) return elsewhere;
  std::vector<Digest> keys;
  for (const KernelJob& job : jobs) keys.push_back(job.key);
  const bool judges = can_judge(target);
  KILN_ASSIGN_OR_RETURN(CodeAnswer answer, supply->ask(keys, waits, judges));
  std::vector<KernelJob> rest;
  for (KernelJob& job : jobs) {
    const auto found = std::ranges::find(answer.found, job.key, &SuppliedCode::key);
    const bool is_found = found != answer.found.end();
    if (is_found && found->is_proven) {
      add_code(job, found->generation, std::move(found->artifact), chosen);
      continue;
    }
    if (is_found && judges) job.made_before = image_in(found->artifact);
    const bool is_elsewhere = std::ranges::find(answer.elsewhere, job.key) != answer.elsewhere.end();
    (is_elsewhere ? elsewhere : rest).push_back(std::move(job));
  }
  jobs = std::move(rest);
  return elsewhere;
}

/// Compiles the jobs' kernels, or judges what was compiled before, and hands them to who waits for them.
Status make_kernels(std::vector<KernelJob>& jobs, const BuildTarget& target, Published& published,
                    const BuildEnvironment& environment, ChosenKernels& chosen, const Beside& beside = {}) {
  if (jobs.empty()) return {};
  KILN_RETURN_IF_ERROR(take_deferred(environment.supply, target, published, jobs));
  KILN_ASSIGN_OR_RETURN(auto kernels, build_kernels(jobs, target, environment, beside));
  std::vector<SuppliedCode> made;
  for (size_t i = 0; i < jobs.size(); ++i) {
    chosen.report.push_back(report_of(jobs[i], kernels[i]));
    chosen.compilations += kernels[i].compilations;
    if (environment.supply != nullptr) {
      made.push_back({jobs[i].key, 0, kernels[i].artifact, jobs[i].key_parts, true, kernels[i].rejected});
    }
    add_code(jobs[i], 0, std::move(kernels[i].artifact), chosen, std::move(kernels[i].schedule));
  }
  return environment.supply == nullptr ? Status() : environment.supply->give(std::move(made));
}

/// The code of each spec of some plans: what is known of it, and what is to be made.
class WantedCode {
 public:
  /// `target`: anybody's, of however many threads. `asked`: that of the programs.
  WantedCode(std::span<const Plan> plans, const BuildTarget& target, const Target& asked, Published& published,
             const ChosenKernels& made, CodeSizes sizes, const SizedSchedules* like)
      : m_target(target), m_asked(asked), m_published(published), m_made(made), m_sizes(sizes) {
    const std::vector<uint8_t> none;
    for (size_t p = 0; p < plans.size(); ++p) {
      m_wanted.emplace_back(plans[p].specs.size());
      for (const Launch& launch : plans[p].launches) {
        Wanted& code = m_wanted[p][launch.spec];
        if (!std::exchange(code.is_settled, true) && !find_winner(plans[p], launch, code))
          find_or_make(plans[p], launch, like == nullptr ? none : (*like)[p][launch.spec], code);
      }
    }
  }

  std::vector<KernelJob>& jobs() { return m_jobs; }

  /// Which code each plan's specs run as, now that all of it is known.
  void settle(ChosenKernels& chosen) const {
    std::unordered_map<Digest, KernelChoice> choices = m_choices;
    for (const BuiltHead& head : chosen.heads) choices[head.key] = {head.artifact, head.generation};
    for (const std::vector<Wanted>& of_plan : m_wanted) {
      auto& codes = chosen.of_plans.emplace_back();
      for (const Wanted& code : of_plan) {
        codes.push_back(choices.at(code.key));
        codes.back().extents = code.extents;
        codes.back().carries_tasks = code.carries_tasks;
        if (code.is_to_race) codes.back().generation = 0;
      }
    }
  }

 private:
  struct Wanted {
    Digest key;
    std::vector<int64_t> extents;  // of its launches
    bool carries_tasks = false;    // as SizedSpec
    bool is_settled = false;
    bool is_to_race = false;  // on the programs' threads: whatever anybody's code has won, it was on others
  };

  /// `content`: what the key is of, the spec or what it shares with others of other sizes.
  Key key_of(const Digest& content, const KernelSpec& spec, const Target& target) const {
    return code_key(content, target, m_target.backend.toolchain_of(spec, target), m_target.proof);
  }

  std::optional<KernelChoice> known(const Digest& key) {
    const auto head = std::ranges::find(m_made.heads, key, &BuiltHead::key);
    if (head == m_made.heads.end()) return m_published.code(key);
    return KernelChoice{head->artifact, head->generation};
  }

  /// What has won a race on the programs' own number of threads serves no others.
  bool find_winner(const Plan& plan, const Launch& launch, Wanted& code) {
    code.is_to_race = m_asked.threads != 0 && is_tunable(plan.specs[launch.spec], m_asked);
    if (!code.is_to_race) return false;
    const Digest key = key_of(plan.digests[launch.spec], plan.specs[launch.spec], m_asked).digest();
    const auto winner = known(key);
    if (!winner) return false;
    m_choices.try_emplace(key, *winner);
    code = {key, {}, false, true, false};
    return true;
  }

  void find_or_make(const Plan& plan, const Launch& launch, const std::vector<uint8_t>& like, Wanted& code) {
    const KernelSpec& spec = plan.specs[launch.spec];
    Digest content = plan.digests[launch.spec];
    Key key = key_of(content, spec, m_target.target);
    auto found = m_sizes == CodeSizes::any ? std::nullopt : known(key.digest());
    std::optional<SizedSpec> sized;
    if (m_sizes != CodeSizes::one && !found) sized = m_target.backend.sized(spec, m_target.target, like);
    if (sized) {
      content = sized->form;
      key = key_of(content, spec, m_target.target);
      code.extents = sized->extents;
      code.carries_tasks = sized->carries_tasks;
    }
    if (!found && m_sizes != CodeSizes::one) found = known(key.digest());
    code.key = key.digest();
    if (!m_choices.try_emplace(code.key, found.value_or(KernelChoice{})).second || found) return;
    m_jobs.push_back({code.key, key.to_json(), &plan, &launch, {}, std::move(sized)});
  }

  const BuildTarget& m_target;
  const Target& m_asked;
  Published& m_published;
  const ChosenKernels& m_made;
  const CodeSizes m_sizes;
  // Specs are shared across regions, and with everything published before: each is looked for once.
  std::vector<std::vector<Wanted>> m_wanted;  // of each plan
  std::unordered_map<Digest, KernelChoice> m_choices;
  std::vector<KernelJob> m_jobs;
};

/// What will have been chosen where every first candidate passes. Its heads say where keys lead, and nothing for people.
ChosenKernels foreseen(const ChosenKernels& known, std::span<const KernelJob> jobs,
                       std::span<const BuiltArtifact> first) {
  ChosenKernels chosen = known;
  for (size_t i = 0; i < jobs.size(); ++i) {
    chosen.heads.push_back({jobs[i].key, first[i].digest, 0, {}, {}});
    chosen.artifacts.push_back(first[i]);
  }
  return chosen;
}

}  // namespace

BuildResult ChosenKernels::news() {
  BuildResult found;
  std::ranges::copy(std::span(artifacts).subspan(m_told_artifacts), std::back_inserter(found.artifacts));
  std::ranges::copy(std::span(heads).subspan(m_told_heads), std::back_inserter(found.heads));
  m_told_artifacts = artifacts.size();
  m_told_heads = heads.size();
  return found;
}

Expected<Image> image_of(const Digest& code, const ChosenKernels& chosen, Published& published) {
  const auto made = std::ranges::find(chosen.artifacts, code, &BuiltArtifact::digest);
  if (made != chosen.artifacts.end()) return image_in(*made);
  if (auto known = published.image_named(code)) return std::move(*known);
  return error(StatusCode::not_found, "code {} is gone from the cache", code.to_short());
}

Expected<ChosenKernels> choose_kernels(std::span<const Plan> plans, const BuildTarget& asked, Published& published,
                                       const BuildEnvironment& environment, const ChosenKernels& made, CodeSizes sizes,
                                       const WithFirstCandidates& beside, const SizedSchedules* like) {
  // What is made here serves programs of any number of threads.
  const Target anybodys = asked.target.for_all_threads();
  const BuildTarget target{asked.backend, anybodys, asked.proof, asked.machine};
  WantedCode wanted(plans, target, asked.target, published, made, sizes, like);
  std::vector<KernelJob>& jobs = wanted.jobs();

  ChosenKernels chosen;
  KILN_ASSIGN_OR_RETURN(auto elsewhere, take_supplied(environment.supply, false, target, jobs, chosen));
  Beside ahead;
  if (beside && target.proof == Proof::verified && elsewhere.empty()) {
    ahead = [&](std::span<const BuiltArtifact> first) {
      ChosenKernels all = foreseen(chosen, jobs, first);
      wanted.settle(all);
      beside(all);
    };
  }
  KILN_RETURN_IF_ERROR(make_kernels(jobs, target, published, environment, chosen, ahead));
  KILN_ASSIGN_OR_RETURN([[maybe_unused]] const auto none,
                        take_supplied(environment.supply, true, target, elsewhere, chosen));
  KILN_RETURN_IF_ERROR(make_kernels(elsewhere, target, published, environment, chosen));
  wanted.settle(chosen);
  return chosen;
}

SizedSchedules sized_schedules(std::span<const Plan> plans, const BuildTarget& target) {
  SizedSchedules schedules;
  for (const Plan& plan : plans) {
    auto& of_plan = schedules.emplace_back();
    for (const KernelSpec& spec : plan.specs) {
      const auto sized = target.backend.sized(spec, target.target.for_all_threads());
      of_plan.push_back(sized ? sized->candidates.front().bytes : std::vector<uint8_t>());
    }
  }
  return schedules;
}

Expected<ChosenKernels> known_kernels(std::span<const Plan> plans, const BuildTarget& asked, Published& published,
                                      const ChosenKernels& made, const SizedSchedules& like) {
  const Target anybodys = asked.target.for_all_threads();
  const BuildTarget target{asked.backend, anybodys, asked.proof, asked.machine};
  WantedCode wanted(plans, target, asked.target, published, made, CodeSizes::any, &like);
  if (!wanted.jobs().empty()) {
    return error(StatusCode::not_found, "no code for {}", kernel_name(wanted.jobs().front().spec()));
  }
  ChosenKernels chosen;
  wanted.settle(chosen);
  return chosen;
}

}  // namespace kiln
