#pragma once

#include "backends/cpu/compile/kernel_emission.h"

namespace kiln::cpu {

/// AttentionSpec and AttentionBackwardSpec on the CPU; see kernel_emission.h for what the functions are.
Status attention_claims(const KernelSpec& spec, const CpuTarget& target);
std::vector<Schedule> attention_candidates(const KernelSpec& spec, const CpuTarget& target);
Expected<LaunchShape> emit_attention(Emitter& emitter, const KernelSpec& spec, const Schedule& schedule);

Status attention_backward_claims(const KernelSpec& spec, const CpuTarget& target);
std::vector<Schedule> attention_backward_candidates(const KernelSpec& spec, const CpuTarget& target);
Expected<LaunchShape> emit_attention_backward(Emitter& emitter, const KernelSpec& spec, const Schedule& schedule);

}  // namespace kiln::cpu
