#include "backends/cpu/compile/loops.h"

namespace kiln::cpu {

Status loops_claims(const KernelSpec&, const CpuTarget&) {
  return error(StatusCode::unimplemented, "cpu: loops kernels have no emitter");
}

std::vector<Schedule> loops_candidates(const KernelSpec&, const CpuTarget&) { return {}; }

Expected<LaunchShape> emit_loops(Emitter& emitter, const KernelSpec& spec, const Schedule&) {
  return loops_claims(spec, emitter.target());
}

}  // namespace kiln::cpu
