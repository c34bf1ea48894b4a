#include "tests/jit/build/planted/linked.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/features.h"
#include "frontend/canonical/canonical.h"
#include "jit/build/link/artifact_writer.h"

namespace kiln::planted {

namespace {

const cpu::CpuCompileBackend& backend() {
  static const cpu::CpuCompileBackend compile_backend;
  return compile_backend;
}

Target host_target() {
  for (const cpu::CpuTarget& target : cpu::ladder()) {
    if ((target.features & ~cpu::host_features()) == 0) return {"cpu", std::string(target.name), {}};
  }
  return {};
}

template <typename Table, typename Native>
std::vector<uint8_t> packed(const Native& native) {
  flatbuffers::FlatBufferBuilder builder;
  builder.ForceDefaults(false);
  builder.Finish(Table::Pack(builder, &native));
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

}  // namespace

Linked::Linked(std::string name, Graph client) : m_name(std::move(name)), m_client(std::move(client)) {
  m_canonical = canonicalise(m_client).graph;
  m_settled = settle_layouts(sink_views(m_canonical));
  m_partition = find_regions(m_settled);
  ProgramDescription description{m_settled, {}, {}, host_target().name, 0};
  for (const RegionClass& region_class : m_partition.classes) {
    auto plan = fuse(region_class.graph);
    EXPECT_TRUE(plan.ok()) << m_name << ": " << plan.status().to_string();
    m_plans.push_back(std::move(plan).value());
    std::vector<KernelChoice> kernels;
    for (const KernelSpec& spec : m_plans.back().specs) kernels.push_back({compile(spec)});
    m_plan_artifacts.push_back(
        plan_artifact(m_plans.back(), static_cast<uint32_t>(region_class.graph.inputs().size()), kernels));
    description.plans.push_back(m_plan_artifacts.back().digest);
  }
  for (const Region& region : m_partition.regions) {
    description.calls.push_back({region.class_index, region.inputs, region.outputs});
  }
  m_program = program_artifact(description);
  for (const Plan& plan : m_plans) m_said.push_back(&plan);
}

Digest Linked::compile(const KernelSpec& spec) {
  auto [known, is_new] = m_compiled.try_emplace(canonical_bytes(spec));
  if (!is_new) return known->second;
  auto image = backend().compile(spec, default_candidates(backend(), spec, host_target()).front(), host_target());
  EXPECT_TRUE(image.ok()) << m_name << ": " << image.status().to_string();
  if (!image.ok()) return {};
  known->second = code_artifact(*image, "cpu").digest;
  m_kernels[known->second] = {std::move(*image), static_cast<uint32_t>(spec.buffers.size())};
  return known->second;
}

fb::PlanT Linked::link(const Plan& plan, size_t inputs) {
  std::vector<KernelChoice> kernels;
  for (const KernelSpec& spec : plan.specs) kernels.push_back({compile(spec)});
  const BuiltArtifact artifact = plan_artifact(plan, static_cast<uint32_t>(inputs), kernels);
  fb::PlanT parts;
  flatbuffers::GetRoot<fb::Plan>(artifact.payload.data())->UnPackTo(&parts);
  return parts;
}

Parts Linked::parts() const {
  Parts parts;
  flatbuffers::GetRoot<fb::Program>(m_program.payload.data())->UnPackTo(&parts.program);
  for (const BuiltArtifact& artifact : m_plan_artifacts) {
    flatbuffers::GetRoot<fb::Plan>(artifact.payload.data())->UnPackTo(&parts.plans.emplace_back());
  }
  return parts;
}

ProgramVerdict Linked::judge(const Parts& parts, CandidateRunner& runner, uint64_t memory_max_bytes) const {
  const std::vector<uint8_t> program = packed<fb::Program>(parts.program);
  std::map<Digest, std::vector<uint8_t>> plans;
  for (size_t i = 0; i < parts.plans.size(); ++i) {
    Digest digest;
    std::ranges::copy(*parts.program.plans[i].bytes(), digest.bytes.begin());
    plans[digest] = packed<fb::Plan>(parts.plans[i]);
  }
  const LinkedProgram linked{
      program,
      [&](const Digest& digest) -> Expected<std::span<const uint8_t>> {
        return std::span<const uint8_t>(plans.at(digest));
      },
      [&](const Digest& digest) -> Expected<LinkedProgram::Kernel> { return m_kernels.at(digest); }};
  return judge_program(origin(), linked, runner, memory_max_bytes);
}

ProgramOrigin Linked::origin() const { return {m_client, m_canonical, m_settled, m_partition, m_said}; }

}  // namespace kiln::planted
