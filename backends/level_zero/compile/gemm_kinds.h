#pragma once

#include <string_view>
#include <vector>

#include "backends/level_zero/compile/kernel.h"

namespace kiln::level_zero {

/// A schedule of a product, and how long it takes by product_cost(), in units in which a multiply-add of a lane is 1.
struct GemmCandidate {
  Schedule schedule;
  double cost = 0;
};

/// What every way to multiply offers: a row of the table in gemm.cc. candidates: those that fit. emit: as
/// emit_gemm.
inline constexpr std::string_view k_gemm_fma = "gemm";
std::vector<GemmCandidate> fma_candidates(const GemmSpec& gemm, const DeviceFamily& family);
Expected<EmittedKernel> emit_fma(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                 const DeviceFamily& family);

inline constexpr std::string_view k_gemm_dpas = "dpas";
std::vector<GemmCandidate> dpas_candidates(const GemmSpec& gemm, const DeviceFamily& family);
Expected<EmittedKernel> emit_dpas(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                  const DeviceFamily& family);

}  // namespace kiln::level_zero
