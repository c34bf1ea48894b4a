#pragma once

#include "backends/cpu/compile/kernel_emission.h"

namespace kiln::cpu {

/// GemmSpec on the CPU; see kernel_emission.h for what the three functions are.
Status gemm_claims(const KernelSpec& spec, const CpuTarget& target);
std::vector<Schedule> gemm_candidates(const KernelSpec& spec, const CpuTarget& target);
Expected<LaunchShape> emit_gemm(Emitter& emitter, const KernelSpec& spec, const Schedule& schedule);

}  // namespace kiln::cpu
