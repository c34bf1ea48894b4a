#include "backends/cpu/compile/attention.h"

namespace kiln::cpu {

Status attention_claims(const KernelSpec&, const CpuTarget&) {
  return error(StatusCode::unimplemented, "cpu: attention kernels have no emitter");
}

std::vector<Schedule> attention_candidates(const KernelSpec&, const CpuTarget&) { return {}; }

Expected<LaunchShape> emit_attention(Emitter& emitter, const KernelSpec& spec, const Schedule&) {
  return attention_claims(spec, emitter.target());
}

Status attention_backward_claims(const KernelSpec&, const CpuTarget&) {
  return error(StatusCode::unimplemented, "cpu: attention backward kernels have no emitter");
}

std::vector<Schedule> attention_backward_candidates(const KernelSpec&, const CpuTarget&) { return {}; }

Expected<LaunchShape> emit_attention_backward(Emitter& emitter, const KernelSpec& spec, const Schedule&) {
  return attention_backward_claims(spec, emitter.target());
}

}  // namespace kiln::cpu
