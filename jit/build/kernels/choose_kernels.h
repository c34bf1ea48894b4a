#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "frontend/fuse/plan.h"
#include "jit/build/artifact.h"
#include "jit/build/environment.h"
#include "jit/build/kernel_choice.h"
#include "jit/build/published.h"

namespace kiln {

/// The code of every kernel spec of some plans, and what was made for it.
struct ChosenKernels {
  std::vector<std::vector<KernelChoice>> of_plans;  // per plan, per Plan::specs
  std::vector<BuiltArtifact> artifacts;             // code that the cache does not have
  std::vector<BuiltHead> heads;                     // that lead to it
  uint64_t compilations = 0;
  nlohmann::ordered_json report = nlohmann::ordered_json::array();  // what was compiled, kernel by kernel

  /// A copy of the artifacts and heads that have been added since it was last asked for.
  BuildResult news();

 private:
  size_t m_told_artifacts = 0, m_told_heads = 0;
};

/// The code of this digest: what was just made, else what the cache has. Errors: not_found.
Expected<Image> image_of(const Digest& code, const ChosenKernels& chosen, Published& published);

/// What is done while kernels get their verdicts, with what will be chosen if every first candidate passes.
using WithFirstCandidates = std::function<void(const ChosenKernels& foreseen)>;

/// What code may be of.
enum class CodeSizes : uint8_t {
  one,         // the sizes of its spec
  one_or_any,  // or, where there is none yet, any sizes, which it takes from its launches, where the backend has such
  any,         // any sizes, where the backend has such
};

/// By plan and spec: the choices that code of any sizes is to be made with (CompileBackend::sized), empty where it has none.
using SizedSchedules = std::vector<std::vector<std::vector<uint8_t>>>;

/// Those that suit these plans' own sizes.
SizedSchedules sized_schedules(std::span<const Plan> plans, const BuildTarget& target);

/// Finds code for each distinct spec: what has won a race on the target's threads, where these are fewer than all, else what
/// anybody's key leads to, in the cache or in what was `made` before, else what others supply (BuildEnvironment::supply),
/// else the first candidate that passes its verdict.
/// Without a device of the target verdicts are deferred (BuildTarget::proof). `beside` is called at most once, by any thread,
/// where code is compiled and none of it is waited for. `like`: for CodeSizes::any, of plans of the same form; null: each spec's own.
/// Errors: unimplemented, internal (compiler or verdict, with the kernel); both name the op (Status::op).
Expected<ChosenKernels> choose_kernels(std::span<const Plan> plans, const BuildTarget& target, Published& published,
                                       const BuildEnvironment& environment, const ChosenKernels& made = {},
                                       CodeSizes sizes = CodeSizes::one, const WithFirstCandidates& beside = {},
                                       const SizedSchedules* like = nullptr);

/// The code of each spec of any sizes (CodeSizes::any) where all of it is `made` or in the cache. Errors: not_found, with a kernel
/// whose code is not.
Expected<ChosenKernels> known_kernels(std::span<const Plan> plans, const BuildTarget& target, Published& published,
                                      const ChosenKernels& made, const SizedSchedules& like);

}  // namespace kiln
