#pragma once

#include "backends/cpu/compile/kernel_emission.h"

namespace kiln::cpu {

/// LoopsSpec on the CPU; see kernel_emission.h for what the three functions are.
Status loops_claims(const KernelSpec& spec, const CpuTarget& target);
std::vector<Schedule> loops_candidates(const KernelSpec& spec, const CpuTarget& target);
Expected<LaunchShape> emit_loops(Emitter& emitter, const KernelSpec& spec, const Schedule& schedule);

}  // namespace kiln::cpu
