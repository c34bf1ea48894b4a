#pragma once

#include <span>

#include "autotune/record.h"
#include "base/fd.h"
#include "jit/build/kernels/choose_kernels.h"
#include "jit/resolve/key.h"

namespace kiln {

/// Whether kernels of the spec race for the target: products and attention, unless bits may not depend on it. Loops wait for
/// memory, and of sorts there is one candidate.
bool is_tunable(const KernelSpec& spec, const Target& target);

/// Which kernels race.
struct RaceOrder {
  bool is_again = false;              // also those that have raced
  Deadline deadline = k_no_deadline;  // after which none begins but the first
};

/// Puts what a race that began at `start` said into `chosen`: the record under its key, and a row of the build's report. Gives
/// the record's digest.
Digest keep_record(const TuningRecord& record, const Key& key, uint32_t generation, Clock::time_point start,
                   ChosenKernels& chosen);

/// Has kept what one race has found.
void keep_race(const BuildEnvironment& environment, BuildResult found);

/// Whether the key leads to a record that this build can read: any other is none. One that only other sources have is added
/// to `chosen`: it stays with what it is about.
bool take_record(const Key& key, Published& published, ChosenKernels& chosen);

/// Races the candidates of the tunable specs that have not raced on this machine, and puts the winners in the place of what
/// `chosen` had: as a later generation, also where the incumbent won, so that a race is seen to have been. A winner is
/// verified like any kernel before it counts. What has raced on such a machine, as other sources know, runs as its winner
/// there. Records and code are added to `chosen`.
/// Gives how many kernels raced.
/// Only what is wrong with the machine is an error; a race that fails leaves the kernel as it is, and the report says why.
Expected<uint32_t> tune_kernels(std::span<const Plan> plans, const BuildTarget& target, Published& published,
                                const BuildEnvironment& environment, const RaceOrder& order, ChosenKernels& chosen);

}  // namespace kiln
