#pragma once

#include <span>

#include "jit/build/kernels/choose_kernels.h"

namespace kiln {

/// Whether kernels of the spec are worth a race: products and attention. What else there is waits for memory.
bool is_tunable(const KernelSpec& spec);

/// Races the candidates of each tunable spec that has not raced on this machine, and puts the winners in the place of what
/// `chosen` had: as a later generation, also where the incumbent won, so that a race is seen to have been. A winner is
/// verified like any kernel before it counts. Records and code are added to `chosen`.
/// Only what is wrong with the machine is an error; a race that fails leaves the kernel as it is, and the report says why.
Status tune_kernels(std::span<const Plan> plans, const BuildTarget& target, Published& published,
                    const BuildEnvironment& environment, ChosenKernels& chosen);

}  // namespace kiln
