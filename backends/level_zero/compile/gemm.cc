#include <algorithm>
#include <array>

#include "backends/level_zero/compile/gemm_kinds.h"
#include "backends/schedule_bytes.h"

namespace kiln::level_zero {
namespace {

/// A way to multiply.
struct GemmKind {
  std::string_view name;  // of its schedules
  std::vector<GemmCandidate> (*candidates)(const GemmSpec&, const DeviceFamily&);
  Expected<EmittedKernel> (*emit)(Emitter&, const KernelSpec&, std::span<const uint8_t>, const DeviceFamily&);
};

constexpr std::array<GemmKind, 2> k_gemm_kinds{{
    {k_gemm_dpas, dpas_candidates, emit_dpas},
    {k_gemm_fma, fma_candidates, emit_fma},
}};

constexpr size_t k_candidates_of_kind = 2;

void sort_by_cost(std::vector<GemmCandidate>& candidates) {
  std::ranges::stable_sort(candidates, {}, &GemmCandidate::cost);
}

}  // namespace

Status gemm_claims(const KernelSpec& spec, const DeviceFamily& family) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  KILN_RETURN_IF_ERROR(claims_buffers(spec, family));
  if (gemm.groups) return error(StatusCode::unimplemented, "level zero: a product of groups that data say");
  if (gemm.dtype == DType::boolean) return error(StatusCode::unimplemented, "level zero: a product of bool");
  for (const Body* body : {&gemm.a, &gemm.b, &gemm.epilogue}) KILN_RETURN_IF_ERROR(claims_body(*body, family));
  if (fma_candidates(gemm, family).empty()) {
    return error(StatusCode::unimplemented, "level zero: a product of {} x {} x {} is too large", gemm.m, gemm.n,
                 gemm.k);
  }
  return {};
}

std::vector<Schedule> gemm_candidates(const KernelSpec& spec, const DeviceFamily& family, const Machine&) {
  std::vector<GemmCandidate> candidates;
  for (const GemmKind& kind : k_gemm_kinds) {
    std::vector<GemmCandidate> of_kind = kind.candidates(std::get<GemmSpec>(spec.kernel), family);
    sort_by_cost(of_kind);
    of_kind.resize(std::min(of_kind.size(), k_candidates_of_kind));
    std::ranges::move(of_kind, std::back_inserter(candidates));
  }
  sort_by_cost(candidates);
  std::vector<Schedule> schedules;
  for (GemmCandidate& candidate : candidates) schedules.push_back(std::move(candidate.schedule));
  return schedules;
}

Expected<EmittedKernel> emit_gemm(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                  const DeviceFamily& family) {
  KILN_ASSIGN_OR_RETURN(const ScheduleBytes opened, open_schedule(bytes));
  const auto kind = std::ranges::find(k_gemm_kinds, opened.implementation, &GemmKind::name);
  if (kind == k_gemm_kinds.end()) {
    return invalid_argument("level zero: no product is made by a schedule of {}", opened.implementation);
  }
  return kind->emit(emitter, spec, bytes, family);
}

}  // namespace kiln::level_zero
