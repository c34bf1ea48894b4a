#pragma once

#include "backends/cpu/compile/emit/kernel_emission.h"
#include "backends/cpu/compile/gemm/emission.h"
#include "backends/schedule_bytes.h"

/// The ways to compile a GemmSpec, and what a row needs besides its schedule and its kernel of a tile.
namespace kiln::cpu {

/// Best first, where several claim a product.
std::span<const Implementation> gemm_implementations();

// dot.cc
Status dot_claims(const KernelSpec& spec, const CpuTarget& target);
std::vector<Schedule> dot_schedules(const KernelSpec& spec, const CpuTarget& target, const Machine& machine);
Expected<LaunchShape> emit_dot(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes);

// outer_product.cc
Status outer_product_claims(const KernelSpec& spec, const CpuTarget& target);
std::vector<Schedule> outer_product_schedules(const KernelSpec& spec, const CpuTarget& target, const Machine& machine);
Expected<LaunchShape> emit_outer_product(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes);

/// Why the expressions of operands and epilogue cannot be emitted, or ok.
Status gemm_bodies_claims(const KernelSpec& spec);

/// Schedules as a row hands them out, from `rank(problem)`: choices for the orientation that the model prefers.
template <typename Rank>
std::vector<Schedule> schedules_of(const KernelSpec& spec, const CpuTarget& target, const Rank& rank) {
  const GemmTypes types = widened(std::get<GemmSpec>(spec.kernel));
  const bool is_exchanged = prefers_exchange(analyse_gemm(spec, target, types));
  const KernelSpec form = oriented(spec, is_exchanged);
  const GemmProblem problem = analyse_gemm(form, target, types);
  std::vector<Schedule> schedules;
  for (auto choices : rank(problem)) {
    choices.exchanged = is_exchanged;
    schedules.push_back({encode_choices(choices), choices.describe(problem),
                         smallest_tile(choices.blocking(problem), problem, is_exchanged)});
  }
  return schedules;
}

/// `write(emission, choices)` for choices that fit the spec. Errors: invalid_argument for others.
template <typename Choices, typename Write>
Expected<LaunchShape> with_schedule(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                    const Write& write) {
  KILN_ASSIGN_OR_RETURN(const Choices choices, parse_choices<Choices>(bytes));
  const KernelSpec form = oriented(spec, choices.exchanged);
  const GemmProblem problem = analyse_gemm(form, emitter.target(), widened(std::get<GemmSpec>(form.kernel)));
  KILN_RETURN_IF_ERROR(choices.validate(problem));
  GemmEmission emission(emitter, problem, choices.blocking(problem));
  return write(emission, choices);
}

}  // namespace kiln::cpu
