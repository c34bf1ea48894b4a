#pragma once

#include "backends/cpu/compile/emit/kernel_emission.h"
#include "backends/cpu/compile/gemm/emission.h"
#include "backends/cpu/compile/gemm/loops.h"
#include "backends/schedule_bytes.h"

/// The ways to compile a GemmSpec, and what a row needs besides its schedule and its kernel of a tile.
namespace kiln::cpu {

/// Best first, where several claim a product.
std::span<const Implementation> gemm_implementations();

// amx.cc
Implementation amx_bf16_implementation();
Implementation amx_int8_implementation();
// dot.cc
Implementation dot_implementation();
Implementation bf16_dot_implementation();
Implementation i16_dot_implementation();
// outer_product.cc
Implementation outer_product_implementation();
Implementation sized_outer_product_implementation();
Implementation sized_bf16_outer_product_implementation();
Implementation grouped_outer_product_implementation();
Implementation grouped_bf16_outer_product_implementation();
Implementation bf16_outer_product_implementation();
Implementation i16_outer_product_implementation();
Implementation i8_outer_product_implementation();

/// Why the expressions of operands and epilogue cannot be emitted, or ok.
Status gemm_bodies_claims(const KernelSpec& spec);

/// Why a row that makes each product of a batch whole has no code for the spec, or ok.
Status whole_products_claims(const KernelSpec& spec);

/// The choices of `rank(problem)` for one orientation, as schedules.
template <typename Choices, typename Rank>
std::vector<Schedule> schedules_of_form(const KernelSpec& spec, const CpuTarget& target, const GemmTypes& types,
                                        bool is_exchanged, const Rank& rank) {
  const KernelSpec form = oriented(spec, is_exchanged);
  const GemmProblem problem = analyse_gemm(form, target, types);
  std::vector<Schedule> schedules;
  for (const auto& ranked : rank(problem)) {
    Choices choices{ranked};
    choices.exchanged = is_exchanged;
    schedules.push_back({encode_choices(choices), choices.describe(problem),
                         smallest_tile(choices.blocking(problem), problem, is_exchanged)});
  }
  return schedules;
}

/// Both lists as one, best first, where those of `preferred` are usually better. Nothing without any of these: the row's
/// first schedule may be the one that runs without a race.
std::vector<Schedule> with_other_form(const std::vector<Schedule>& preferred, const std::vector<Schedule>& other);

/// Schedules as a row hands them out, from `rank(problem)`: choices for the orientation that the model prefers, and among
/// them the best for the other one. None where the row does not claim the spec.
template <typename Choices, typename Rank>
std::vector<Schedule> schedules_of(const KernelSpec& spec, const CpuTarget& target, const Rank& rank) {
  const auto types = Choices::types(spec, target);
  if (!types.ok()) return {};
  const bool is_exchanged = prefers_exchange(analyse_gemm(spec, target, *types));
  return with_other_form(schedules_of_form<Choices>(spec, target, *types, is_exchanged, rank),
                         schedules_of_form<Choices>(spec, target, *types, !is_exchanged, rank));
}

/// `write(emission, choices)` for choices that fit the spec. Errors: invalid_argument for others.
template <typename Choices, typename Write>
Expected<LaunchShape> with_schedule(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                    const Write& write) {
  KILN_ASSIGN_OR_RETURN(const Choices choices, parse_choices<Choices>(bytes));
  KILN_ASSIGN_OR_RETURN(const GemmTypes types, Choices::types(spec, emitter.target()));
  const KernelSpec form = oriented(spec, choices.exchanged);
  const GemmProblem problem = analyse_gemm(form, emitter.target(), types);
  KILN_RETURN_IF_ERROR(choices.validate(problem));
  GemmEmission emission(emitter, problem, choices.blocking(problem));
  return write(emission, choices);
}

/// The product by the row's kernel of a tile, which is made of an emission and choices.
template <typename Choices, typename Kernel>
Expected<LaunchShape> emit_tiles(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  return with_schedule<Choices>(emitter, spec, bytes, [](GemmEmission& emission, const Choices& choices) {
    Kernel kernel(emission, choices);
    return emit_gemm_loops(emission, kernel);
  });
}

}  // namespace kiln::cpu
