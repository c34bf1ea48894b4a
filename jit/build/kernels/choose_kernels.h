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

/// Finds code for each distinct spec: what has won a race on the target's threads, where these are fewer than all, else what
/// anybody's key leads to, in the cache or in what was `made` before, else what others supply (BuildEnvironment::supply),
/// else the first candidate that passes its verdict.
/// With `sizes_vary` a spec without code gets code that takes sizes from its launches, where the backend has such.
/// Without a device of the target verdicts are deferred (BuildTarget::proof). `beside` is called at most once, by any thread,
/// where code is compiled and none of it is waited for.
/// Errors: unimplemented, internal (compiler or verdict, with the kernel); both name the op (Status::op).
Expected<ChosenKernels> choose_kernels(std::span<const Plan> plans, const BuildTarget& target, Published& published,
                                       const BuildEnvironment& environment, const ChosenKernels& made = {},
                                       bool sizes_vary = false, const WithFirstCandidates& beside = {});

}  // namespace kiln
