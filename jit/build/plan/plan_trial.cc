#include "jit/build/plan/plan_trial.h"

#include <algorithm>

#include "jit/build/kernels/kernel_builder.h"
#include "jit/build/link/artifact_writer.h"
#include "jit/build/program_verdict/program_verdict.h"

namespace kiln {

Expected<PlanTrial> PlanTrial::judge(const RegionClass& region, const Plan& plan, std::span<const Digest> codes,
                                     std::vector<Image> images, const BuildTarget& target,
                                     const BuildEnvironment& environment) {
  KILN_ASSIGN_OR_RETURN(auto runner, make_runner(environment, target));
  const uint64_t swept_bytes = machine_for(target.backend, target.target, runner.get()).second_level_bytes;
  PlanTrial trial(plan, std::move(images), std::move(runner), swept_bytes);
  KILN_RETURN_IF_ERROR(trial.judge(region, codes, target, environment.program_verdict_max_bytes));
  trial.leave_out({});
  return trial;
}

Status PlanTrial::judge(const RegionClass& region, std::span<const Digest> codes, const BuildTarget& target,
                        uint64_t memory_max_bytes) {
  const Graph& graph = region.graph;
  RegionPartition alone;
  Region& whole = alone.regions.emplace_back();
  whole.inputs = graph.inputs();
  whole.outputs = graph.outputs();
  alone.classes.push_back(region);
  std::vector<KernelChoice> kernels;
  for (const Digest& code : codes) kernels.push_back({code});
  const BuiltArtifact plan = plan_artifact(*m_plan, static_cast<uint32_t>(whole.inputs.size()), kernels);
  const BuiltArtifact program =
      program_artifact({graph, {plan.digest}, {{0, whole.inputs, whole.outputs}}, target.target.name});
  const LinkedProgram linked{program.payload, [&](const Digest&) { return std::span<const uint8_t>(plan.payload); },
                             [&](const Digest& code) -> Expected<LinkedProgram::Kernel> {
                               const auto spec = static_cast<size_t>(std::ranges::find(codes, code) - codes.begin());
                               if (spec == codes.size())
                                 return error(StatusCode::internal, "code {} is not the plan's", code.to_short());
                               return LinkedProgram::Kernel{m_images[spec],
                                                            static_cast<uint32_t>(m_plan->specs[spec].buffers.size())};
                             }};
  const Plan* const plans[] = {m_plan};
  ProgramVerdict verdict =
      judge_program({graph, graph, graph, alone, plans}, linked, *m_runner, memory_max_bytes, StandIns::in_place);
  KILN_RETURN_IF_ERROR(verdict.status);
  if (!verdict.not_judged.empty()) return error(StatusCode::resource_exhausted, "{}", verdict.not_judged);
  m_arguments = std::move(verdict.arguments);
  return {};
}

void PlanTrial::leave_out(const std::set<Digest>& specs) {
  m_timed.clear();
  for (size_t i = 0; i < m_plan->launches.size(); ++i) {
    const uint32_t spec = m_plan->launches[i].spec;
    if (!specs.contains(m_plan->digests[spec])) m_timed.push_back({&m_images[spec], m_arguments[i]});
  }
}

Expected<TimeSample> PlanTrial::sample(double expected_seconds) {
  return m_stopwatch.sample(m_timed, expected_seconds);
}

}  // namespace kiln
