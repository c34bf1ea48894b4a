#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "backends/machine.h"

namespace kiln::cuda {

/// What code is generated for. Cubins run within one major capability only, and those of an exact target on its very
/// capability.
struct CudaTarget {
  std::string_view name;  // "sm_90a": NVRTC's --gpu-architecture
  int capability = 0;     // 10 * major + minor
  bool is_exact = false;
  uint32_t shared_bytes = 0;  // most dynamic shared memory of a block that schedules may ask for
  bool has_tma = false;       // and wgmma, transaction barriers, clusters
  std::string_view device;    // a usual one, and its multiprocessors
  uint32_t multiprocessors = 0;
};

/// Best first.
std::span<const CudaTarget> cuda_targets();
/// Null where there is none of that name.
const CudaTarget* find_cuda_target(std::string_view name);
/// What schedules for the target assume where no device has been asked.
Machine default_machine(const CudaTarget& target);
/// Whether a device of this capability and shared memory a block runs the target's code.
bool can_run(const CudaTarget& target, int capability, uint32_t shared_bytes);

}  // namespace kiln::cuda
