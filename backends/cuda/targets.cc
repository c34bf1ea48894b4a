#include "backends/cuda/targets.h"

#include <algorithm>
#include <array>

namespace kiln::cuda {

std::span<const CudaTarget> cuda_targets() {
  // Shared memory: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": 227 and 163 KiB.
  static constexpr std::array<CudaTarget, 2> k_targets{{
      {"sm_90a", 90, true, 227 << 10, true, "NVIDIA H100 SXM", 132},
      {"sm_80", 80, false, 163 << 10, false, "NVIDIA A100", 108},
  }};
  return k_targets;
}

const CudaTarget* find_cuda_target(std::string_view name) {
  const auto targets = cuda_targets();
  const auto it = std::find_if(targets.begin(), targets.end(), [&](const CudaTarget& t) { return t.name == name; });
  return it == targets.end() ? nullptr : &*it;
}

Machine default_machine(const CudaTarget& target) {
  return {.model = std::string(target.device), .cores = target.multiprocessors};
}

bool can_run(const CudaTarget& target, int capability, uint32_t shared_bytes) {
  const bool fits = target.is_exact ? capability == target.capability
                                    : capability / 10 == target.capability / 10 && capability >= target.capability;
  return fits && shared_bytes >= target.shared_bytes;
}

}  // namespace kiln::cuda
