#pragma once

#include <memory>
#include <vector>

#include "backends/backend.h"
#include "base/expected.h"
#include "frontend/fuse/plan.h"
#include "jit/build/kernels/fragment_reference.h"
#include "verdict/verdict.h"

namespace kiln {

/// Terms that a kernel sums into one element, at most.
int64_t reduction_length(const KernelSpec& spec);

/// The f64 reference of a launch over a trial's inputs: the fragment of the region graph that the launch computes,
/// evaluated where the verdict asks, and remembered from one candidate to the next.
///
/// Ownership: refers to the trial's data, which must outlive it. Threading: one thread at a time.
class LaunchReference {
 public:
  static Expected<LaunchReference> create(const Plan& plan, const Launch& launch, const CandidateTrial& trial);

  /// Has the verdict see each tile of kernels that one of these schedules made; small ones of which nothing is known.
  void aim_at(std::span<const Schedule> schedules);

  /// Computes what the verdict in an ordinary situation will compare with.
  void foresee();

  /// They refer to what this object owns.
  const std::vector<OutputReference>& outputs() const { return m_outputs; }

  /// Whether elements of the outputs need an index that is out of range, first and last ones among those tried: in one column
  /// of few rows, or `thoroughly`, wherever candidates are compared.
  bool finds_bad_index(bool thoroughly) const;

 private:
  std::unique_ptr<FragmentReference> m_whole;
  std::unique_ptr<FragmentReference> m_primitives;  // what overflows between them does so in the kernel
  std::vector<OutputReference> m_outputs;
  const KernelSpec* m_spec = nullptr;  // the plan's
};

}  // namespace kiln
