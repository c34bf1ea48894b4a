#pragma once

#include <memory>
#include <set>
#include <span>
#include <vector>

#include "autotune/measure.h"
#include "frontend/fuse/plan.h"
#include "frontend/regions/regions.h"
#include "jit/build/environment.h"
#include "jit/build/kernels/choose_kernels.h"

namespace kiln {

/// A region's plan as a program of its own, in a worker of its own: judged as programs are, then timed.
///
/// Ownership: refers to the plan. Threading: one thread at a time.
class PlanTrial {
 public:
  /// `codes` and `images`: of each of the plan's specs. Afterwards the worker's memory is as the program left it.
  /// Errors: internal when the program is wrong; resource_exhausted when it is too large to be judged.
  static Expected<PlanTrial> judge(const RegionClass& region, const Plan& plan, std::span<const Digest> codes,
                                   std::vector<Image> images, const BuildTarget& target,
                                   const BuildEnvironment& environment);

  /// From here on launches of these specs are not timed.
  void leave_out(const std::set<Digest>& specs);
  /// Times the launches one after another, in the plan's order. `swept_bytes`, errors: Stopwatch's.
  Expected<TimeSample> sample(double expected_seconds);

 private:
  PlanTrial(const Plan& plan, std::vector<Image> images, std::unique_ptr<CandidateRunner> runner, uint64_t swept_bytes)
      : m_plan(&plan),
        m_images(std::move(images)),
        m_runner(std::move(runner)),
        m_stopwatch(*m_runner, {swept_bytes}) {}
  Status judge(const RegionClass& region, std::span<const Digest> codes, const BuildTarget& target,
               uint64_t memory_max_bytes);

  const Plan* m_plan;
  std::vector<Image> m_images;
  std::unique_ptr<CandidateRunner> m_runner;
  Stopwatch m_stopwatch;
  std::vector<std::vector<LaunchArgument>> m_arguments;  // of each launch
  std::vector<TimedLaunch> m_timed;
};

}  // namespace kiln
