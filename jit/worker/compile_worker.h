#pragma once

#include <functional>

#include "base/fd.h"
#include "jit/build/build.h"
#include "jit/worker/buffer_arenas.h"
#include "jit/worker/thread_budget.h"

namespace kiln {

/// kiln::build with the backends of this program, or what a test puts in its place.
using BuildFunction = std::function<Expected<BuildResult>(const BuildRequest&, const BuildEnvironment&)>;

/// Bounds of one compile worker; 0 is none.
struct WorkerLimits {
  uint64_t memory_max_bytes = 0;
  uint64_t cpu_max_seconds = 0;
};

/// The life of a compile worker after its fork: bounds itself, reads one job from `socket`, builds, answers,
/// and leaves. Never returns. A process for each job: what a compiler leaks or breaks ends with it.
[[noreturn]] void run_compile_worker(UniqueFd socket, pid_t parent, const WorkerLimits& limits,
                                     const BufferArenas& arenas, const ThreadBudget& threads,
                                     const BuildFunction& build);

}  // namespace kiln
