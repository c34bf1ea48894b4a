#pragma once

#include <vector>

#include "backends/backend.h"
#include "backends/cuda/compile/gemm_problem.h"
#include "backends/cuda/targets.h"

namespace kiln::cuda {

/// Which template (gemm_<kind>.cuh) with which tile.
struct GemmForm {
  enum class Kind : uint8_t { simple = 0, mma = 1, wgmma = 2 };
  Kind kind = Kind::simple;
  uint32_t tile_m = 64, tile_n = 64;
  uint32_t warps_m = 0, warps_n = 0;  // mma
  uint32_t stages = 2;
  uint32_t cluster = 1;  // wgmma
  bool operator==(const GemmForm&) const = default;

  uint32_t threads() const;
  uint32_t shared_bytes(DType accumulator) const;
  uint32_t blocks_of_sm() const;  // that the registers should leave room for
};

/// Best first by waves of tiles over the target's multiprocessors, at least one.
std::vector<GemmForm> gemm_forms(const GemmProblem& problem, const CudaTarget& target);
/// The best of a kind that takes any address.
GemmForm form_for_any_address(const GemmProblem& problem, const CudaTarget& target);

Schedule to_schedule(const GemmForm& form);
/// Errors: invalid_argument for bytes that are no form.
Expected<GemmForm> gemm_form_of(const Schedule& schedule);

}  // namespace kiln::cuda
