#include "jit/build/kernels/choose_kernels.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "frontend/kernel/kernel_text.h"
#include "jit/build/kernels/kernel_builder.h"
#include "jit/resolve/key.h"

namespace kiln {

namespace {

/// What was compiled for the spec where its verdict had to be deferred.
std::optional<Image> deferred_code(const Digest& spec, const BuildTarget& target, Published& published) {
  if (target.proof == Proof::deferred) return std::nullopt;
  return published.image(code_key(spec, target.target, {}, Proof::deferred).digest());
}

std::optional<KernelChoice> known_code(const Digest& key, Published& published, const ChosenKernels& made) {
  const auto head = std::ranges::find(made.heads, key, &BuiltHead::key);
  if (head == made.heads.end()) return published.code(key);
  return KernelChoice{head->artifact, head->generation};
}

/// The code of a spec of a plan.
struct Wanted {
  Digest key;
  std::vector<int64_t> extents;  // of its launches
  bool is_settled = false;
};

void add_code(const KernelJob& job, uint32_t generation, BuiltArtifact artifact, ChosenKernels& chosen,
              std::string schedule = {}) {
  chosen.heads.push_back({.key = job.key,
                          .artifact = artifact.digest,
                          .generation = generation,
                          .key_parts = job.key_parts,
                          .name = kernel_name(job.spec()),
                          .schedule = std::move(schedule),
                          .spec = kernel_text(job.spec())});
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

/// Takes from others what they have of the jobs' code. The jobs whose code another build makes right now are given; what is
/// left of `jobs` is to be made here.
Expected<std::vector<KernelJob>> take_supplied(CodeSupply* supply, bool waits, std::vector<KernelJob>& jobs,
                                               ChosenKernels& chosen) {
  std::vector<KernelJob> elsewhere;
  if (supply == nullptr || jobs.empty()) return elsewhere;
  std::vector<Digest> keys;
  for (const KernelJob& job : jobs) keys.push_back(job.key);
  KILN_ASSIGN_OR_RETURN(CodeAnswer answer, supply->ask(keys, waits));
  std::vector<KernelJob> rest;
  for (KernelJob& job : jobs) {
    const auto found = std::ranges::find(answer.found, job.key, &SuppliedCode::key);
    if (found != answer.found.end()) {
      add_code(job, found->generation, std::move(found->artifact), chosen);
    } else {
      const bool is_elsewhere = std::ranges::find(answer.elsewhere, job.key) != answer.elsewhere.end();
      (is_elsewhere ? elsewhere : rest).push_back(std::move(job));
    }
  }
  jobs = std::move(rest);
  return elsewhere;
}

/// Compiles the jobs' kernels, and hands them to who waits for them.
Status make_kernels(std::span<const KernelJob> jobs, const BuildTarget& target, const BuildEnvironment& environment,
                    ChosenKernels& chosen, const Beside& beside = {}) {
  if (jobs.empty()) return {};
  KILN_ASSIGN_OR_RETURN(auto kernels, build_kernels(jobs, target, environment, beside));
  std::vector<SuppliedCode> made;
  for (size_t i = 0; i < jobs.size(); ++i) {
    chosen.report.push_back(report_of(jobs[i], kernels[i]));
    chosen.compilations += kernels[i].compilations;
    if (environment.supply != nullptr) made.push_back({jobs[i].key, 0, kernels[i].artifact, jobs[i].key_parts});
    add_code(jobs[i], 0, std::move(kernels[i].artifact), chosen, std::move(kernels[i].schedule));
  }
  return environment.supply == nullptr ? Status() : environment.supply->give(std::move(made));
}

/// Which code each plan's specs run as, now that all of it is known.
void settle(std::unordered_map<Digest, KernelChoice> choices, std::span<const std::vector<Wanted>> wanted,
            ChosenKernels& chosen) {
  for (const BuiltHead& head : chosen.heads) choices[head.key] = {head.artifact, head.generation};
  for (const std::vector<Wanted>& of_plan : wanted) {
    auto& codes = chosen.of_plans.emplace_back();
    for (const Wanted& code : of_plan) {
      codes.push_back(choices.at(code.key));
      codes.back().extents = code.extents;
    }
  }
}

/// What will have been chosen where every first candidate passes.
ChosenKernels foreseen(const ChosenKernels& known, std::span<const KernelJob> jobs,
                       std::span<const BuiltArtifact> first) {
  ChosenKernels chosen = known;
  for (size_t i = 0; i < jobs.size(); ++i) add_code(jobs[i], 0, first[i], chosen);
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
  if (made != chosen.artifacts.end()) {
    return Image{made->payload, made->entry, made->tasks, made->workspace_bytes, made->features};
  }
  if (auto known = published.image_named(code)) return std::move(*known);
  return error(StatusCode::not_found, "code {} is gone from the cache", code.to_short());
}

Expected<ChosenKernels> choose_kernels(std::span<const Plan> plans, const BuildTarget& target, Published& published,
                                       const BuildEnvironment& environment, const ChosenKernels& made, bool sizes_vary,
                                       const WithFirstCandidates& beside) {
  // Specs are shared across regions, and with everything published before: each is looked for once.
  std::vector<std::vector<Wanted>> wanted(plans.size());
  std::unordered_map<Digest, KernelChoice> choices;
  std::vector<KernelJob> jobs;
  for (size_t p = 0; p < plans.size(); ++p) {
    wanted[p].resize(plans[p].specs.size());
    for (const Launch& launch : plans[p].launches) {
      Wanted& code = wanted[p][launch.spec];
      if (code.is_settled) continue;
      code.is_settled = true;
      Digest content = plans[p].digests[launch.spec];
      Key key = code_key(content, target.target, target.backend.toolchain(), target.proof);
      auto known = known_code(key.digest(), published, made);
      std::optional<SizedSpec> sized;
      if (sizes_vary && !known) sized = target.backend.sized(plans[p].specs[launch.spec], target.target);
      if (sized) {
        content = sized->form;
        key = code_key(content, target.target, target.backend.toolchain(), target.proof);
        known = known_code(key.digest(), published, made);
        code.extents = sized->extents;
      }
      code.key = key.digest();
      if (!choices.try_emplace(code.key, known.value_or(KernelChoice{})).second || known) continue;
      jobs.push_back(
          {code.key, key.to_json(), &plans[p], &launch, deferred_code(content, target, published), std::move(sized)});
    }
  }

  ChosenKernels chosen;
  KILN_ASSIGN_OR_RETURN(auto elsewhere, take_supplied(environment.supply, false, jobs, chosen));
  Beside ahead;
  if (beside && target.proof == Proof::verified && elsewhere.empty()) {
    ahead = [&](std::span<const BuiltArtifact> first) {
      ChosenKernels all = foreseen(chosen, jobs, first);
      settle(choices, wanted, all);
      beside(all);
    };
  }
  KILN_RETURN_IF_ERROR(make_kernels(jobs, target, environment, chosen, ahead));
  KILN_ASSIGN_OR_RETURN([[maybe_unused]] const auto none, take_supplied(environment.supply, true, elsewhere, chosen));
  KILN_RETURN_IF_ERROR(make_kernels(elsewhere, target, environment, chosen));
  settle(std::move(choices), wanted, chosen);
  return chosen;
}

}  // namespace kiln
