#include "jit/build/judge_linked.h"

#include <algorithm>

namespace kiln {

namespace {

const KernelSpec* spec_of(const Digest& code, const Linked& linked) {
  for (size_t p = 0; p < linked.plans.size(); ++p) {
    const std::vector<KernelChoice>& codes = linked.kernels.of_plans[p];
    const auto found = std::ranges::find(codes, code, &KernelChoice::code);
    if (found != codes.end()) return &linked.plans[p].specs[static_cast<size_t>(found - codes.begin())];
  }
  return nullptr;
}

Expected<LinkedProgram::Kernel> kernel_named(const Digest& digest, const Linked& linked, Published& published) {
  const KernelSpec* spec = spec_of(digest, linked);
  if (spec == nullptr)
    return error(StatusCode::internal, "the program names code {} that its plans do not", digest.to_short());
  KILN_ASSIGN_OR_RETURN(Image image, image_of(digest, linked.kernels, published));
  return LinkedProgram::Kernel{std::move(image), static_cast<uint32_t>(spec->buffers.size())};
}

Expected<std::span<const uint8_t>> plan_named(const Digest& digest, const Linked& linked) {
  const auto found = std::ranges::find(linked.plan_artifacts, digest, &BuiltArtifact::digest);
  if (found != linked.plan_artifacts.end()) return std::span<const uint8_t>(found->payload);
  return error(StatusCode::internal, "the program names plan {} that it was not linked with", digest.to_short());
}

}  // namespace

Expected<ProgramVerdict> judge_linked(const Linked& linked, Published& published, CandidateRunner& runner,
                                      const BuildEnvironment& environment) {
  environment.progress("verify", 0, 1, "program");
  std::vector<const Plan*> plans;
  for (const Plan& plan : linked.plans) plans.push_back(&plan);
  const LinkedProgram program{linked.program, [&](const Digest& plan) { return plan_named(plan, linked); },
                              [&](const Digest& code) { return kernel_named(code, linked, published); }};
  ProgramVerdict verdict = judge_program({linked.client, linked.canonical, linked.settled, linked.partition, plans},
                                         program, runner, environment.program_verdict_max_bytes);
  KILN_RETURN_IF_ERROR(verdict.status);
  environment.progress("verify", 1, 1, "program");
  return verdict;
}

}  // namespace kiln
