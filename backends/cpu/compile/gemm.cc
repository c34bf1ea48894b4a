#include "backends/cpu/compile/gemm.h"

namespace kiln::cpu {

Status gemm_claims(const KernelSpec&, const CpuTarget&) {
  return error(StatusCode::unimplemented, "cpu: gemm kernels have no emitter");
}

std::vector<Schedule> gemm_candidates(const KernelSpec&, const CpuTarget&) { return {}; }

Expected<LaunchShape> emit_gemm(Emitter& emitter, const KernelSpec& spec, const Schedule&) {
  return gemm_claims(spec, emitter.target());
}

}  // namespace kiln::cpu
