#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/limits.h"
#include "jit/build/build.h"
#include "jit/build/program_verdict/program_verdict.h"
#include "jit/run/program_generated.h"

namespace kiln::planted {

/// What clients would load, taken apart so that faults can be planted in it.
struct Parts {
  fb::ProgramT program;
  std::vector<fb::PlanT> plans;  // those that the program names, in order: one per class of the partition
};

/// A graph on its way to a program, by the parts that build() uses, without verdicts.
class Linked {
 public:
  Linked(std::string name, Graph client);

  const std::string& name() const { return m_name; }
  const Graph& client() const { return m_client; }
  const Graph& settled() const { return m_settled; }
  const RegionPartition& partition() const { return m_partition; }
  const Plan& plan(uint32_t region_class) const { return m_plans[region_class]; }
  /// Lives as long as this does.
  ProgramOrigin origin() const;

  /// A fresh copy.
  Parts parts() const;
  /// Compiles what `plan` needs and gives its artifact, to be linked in place of the plan of a class.
  fb::PlanT link(const Plan& plan, size_t inputs);
  /// Compiles the kernel; its digest.
  Digest compile(const KernelSpec& spec);

  ProgramVerdict judge(const Parts& parts, CandidateRunner& runner,
                       uint64_t memory_max_bytes = limits::k_program_verdict_bytes) const;

 private:
  std::string m_name;
  Graph m_client, m_canonical, m_settled;
  RegionPartition m_partition;
  std::vector<Plan> m_plans;
  std::vector<const Plan*> m_said;  // those, as a program's origin names them
  std::map<Digest, LinkedProgram::Kernel> m_kernels;
  std::map<std::vector<uint8_t>, Digest> m_compiled;  // by canonical bytes of the spec
  std::vector<BuiltArtifact> m_plan_artifacts;
  BuiltArtifact m_program;
};

/// Realistic programs: repeated blocks, strided and repeated outputs, scatters, attention with its gradients, views and
/// inputs that are returned.
std::vector<std::unique_ptr<Linked>> subjects();

/// A product in bf16, and the gradients of the layer norm before it.
Graph product_and_norm_gradients();
/// Attention's, of scores far above the logsumexp that is said to be theirs.
Graph gradients_beyond_range();

}  // namespace kiln::planted
