#include "backends/cuda/compile/gemm_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "backends/cuda/compile/gemm_packing.h"
#include "backends/cuda/compile/texts.h"
#include "backends/schedule_bytes.h"

namespace kiln::cuda {
namespace {

using Kind = GemmSchedule::Kind;

constexpr uint32_t k_simple_step = 16;  // gemm_simple.cuh's k_tile_k
constexpr uint32_t k_row_bytes = 128;

using Row = GemmImplementation::Row;

constexpr std::array k_wgmma_rows{
    Row{{Kind::wgmma, 128, 256, 0, 0, 4, 2}, 1.0},  Row{{Kind::wgmma, 128, 256, 0, 0, 4, 1}, 0.97},
    Row{{Kind::wgmma, 128, 128, 0, 0, 6, 2}, 0.88}, Row{{Kind::wgmma, 128, 128, 0, 0, 6, 1}, 0.86},
    Row{{Kind::wgmma, 128, 64, 0, 0, 8, 1}, 0.65},  Row{{Kind::wgmma, 64, 128, 0, 0, 8, 1}, 0.6},
    Row{{Kind::wgmma, 64, 64, 0, 0, 8, 1}, 0.42},
};
constexpr std::array k_mma_rows{
    Row{{Kind::mma, 128, 128, 2, 4, 3, 1}, 0.6},
    Row{{Kind::mma, 128, 64, 2, 2, 3, 1}, 0.5},
    Row{{Kind::mma, 64, 128, 2, 2, 3, 1}, 0.5},
    Row{{Kind::mma, 64, 64, 2, 2, 4, 1}, 0.4},
};
constexpr std::array k_simple_rows{
    Row{{Kind::simple, 128, 128, 0, 0, 2, 1}, 1.0},
    Row{{Kind::simple, 128, 64, 0, 0, 2, 1}, 0.85},
    Row{{Kind::simple, 64, 64, 0, 0, 2, 1}, 0.7},
};

bool is_multiple(uint32_t value, uint32_t of) { return value > 0 && value % of == 0; }

bool always_pays(const GemmProblem&) { return true; }

// Which problems a template is for, and what its constants can be.

bool claims_simple(const GemmProblem& problem, const CudaTarget&) { return !problem.uses_tensor_cores(); }

/// Each of 16 x 16 threads has fours of rows and of columns, 64 apart; two buffers.
bool makes_simple(const GemmSchedule& s) {
  return is_multiple(s.tile_m, 64) && is_multiple(s.tile_n, 64) && s.tile_m <= 256 && s.tile_n <= 256 &&
         s.warps_m == 0 && s.warps_n == 0 && s.stages == 2 && s.cluster == 1;
}

bool claims_mma(const GemmProblem& problem, const CudaTarget&) { return problem.uses_tensor_cores(); }

/// Warps make whole 16 x 16 fragments of slabs of 64, and the threads fill a stage in whole rounds of 16-byte chunks.
bool makes_mma(const GemmSchedule& s) {
  if (s.warps_m == 0 || s.warps_n == 0 || s.warps_m > 8 || s.warps_n > 8 || s.threads() > 512) return false;
  return is_multiple(s.tile_m, 64) && is_multiple(s.tile_n, 64) && s.tile_m <= 256 && s.tile_n <= 256 &&
         is_multiple(s.tile_m, 16 * s.warps_m) && is_multiple(s.tile_n, 16 * s.warps_n) &&
         is_multiple(s.tile_m * 8, s.threads()) && is_multiple(s.tile_n * 8, s.threads()) && s.stages >= 2 &&
         s.stages <= 16 && s.cluster == 1;
}

bool claims_wgmma(const GemmProblem& problem, const CudaTarget& target) {
  return problem.uses_tensor_cores() && target.has_tma && problem.a.is_tensor && problem.b.is_tensor &&
         problem.gemm->k > 0;
}

bool claims_packed_wgmma(const GemmProblem& problem, const CudaTarget& target) {
  return problem.uses_tensor_cores() && target.has_tma && is_packable(problem);
}

/// One or two warpgroups of 64 rows, which share the registers that the producer gives up; the widths that the prelude has
/// products of. Each block of a cluster loads whole slabs of 64 of B.
bool makes_wgmma(const GemmSchedule& s) {
  const bool is_tile = (s.tile_m == 64 || s.tile_m == 128) && (s.tile_n == 64 || s.tile_n == 128 || s.tile_n == 256);
  return is_tile && s.warps_m == 0 && s.warps_n == 0 && s.stages >= 2 && s.stages <= 16 &&
         (s.cluster == 1 || s.cluster == 2) && is_multiple(s.tile_n, 64 * s.cluster);
}

// In the order of Kind: the last that claims a problem, and pays, is best.
constexpr std::array k_implementations{
    GemmImplementation{"simple", &gemm_simple_text, true, claims_simple, always_pays, makes_simple, k_simple_rows},
    GemmImplementation{"mma", &gemm_mma_text, true, claims_mma, always_pays, makes_mma, k_mma_rows},
    GemmImplementation{"wgmma", &gemm_wgmma_text, false, claims_wgmma, always_pays, makes_wgmma, k_wgmma_rows},
    GemmImplementation{"packed_wgmma", &gemm_wgmma_text, false, claims_packed_wgmma, packing_pays, makes_wgmma,
                       k_wgmma_rows},
};

Kind kind_of(const GemmImplementation& implementation) {
  return static_cast<Kind>(&implementation - k_implementations.data());
}

int64_t blocks_across(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }

/// Time in units of an element of C at peak: whole waves of tiles.
double cost(const GemmProblem& problem, const Machine& machine, const Row& row) {
  const GemmSchedule& schedule = row.schedule;
  const auto tiles =
      static_cast<double>(problem.batches * blocks_across(problem.gemm->m, schedule.tile_m * schedule.cluster) *
                          schedule.cluster * blocks_across(problem.gemm->n, schedule.tile_n));
  const double waves = std::max(1.0, std::ceil(tiles / std::max(1u, machine.cores)));
  return waves * schedule.tile_m * schedule.tile_n / row.efficiency;
}

std::vector<GemmSchedule> best_first(const GemmImplementation& implementation, const GemmProblem& problem,
                                     const CudaTarget& target, const Machine& machine) {
  std::vector<Row> sorted(implementation.rows.begin(), implementation.rows.end());
  std::ranges::stable_sort(sorted, {}, [&](const Row& row) { return cost(problem, machine, row); });
  const DType accumulator = accumulator_of(problem.gemm->dtype);
  std::vector<GemmSchedule> schedules;
  for (const Row& row : sorted) {
    // Accumulators of eight bytes take twice the registers.
    if (size_of(accumulator) > 4 && row.schedule.tile_m * row.schedule.tile_n > 64 * 64) continue;
    if (row.schedule.shared_bytes(accumulator) > target.shared_bytes) continue;
    schedules.push_back(row.schedule);
    schedules.back().kind = kind_of(implementation);
  }
  return schedules;
}

}  // namespace

uint32_t GemmSchedule::threads() const {
  if (kind == Kind::mma) return warps_m * warps_n * 32;
  return uses_wgmma() ? 128 * (1 + tile_m / 64) : 256;
}

uint32_t GemmSchedule::shared_bytes(DType accumulator) const {
  const uint32_t ring = stages * (tile_m + tile_n) * k_row_bytes;
  switch (kind) {
    case Kind::simple:
      return 2 * k_simple_step * (tile_m + tile_n + 8) * static_cast<uint32_t>(size_of(accumulator)) +
             k_shared_alignment_bytes;
    case Kind::mma:
      return std::max(ring, tile_m * tile_n * 4) + k_shared_alignment_bytes;
    case Kind::wgmma:
    case Kind::packed_wgmma:
      return ring + tile_m / 64 * 64 * 64 * 4 + 16 * stages + k_shared_alignment_bytes;
  }
  return 0;
}

uint32_t GemmSchedule::blocks_of_sm() const { return !uses_wgmma() && tile_m * tile_n <= 64 * 64 ? 2 : 1; }

std::string GemmSchedule::describe() const {
  std::string text = fmt::format("{} tile {}x{} stages {}", implementation_of(*this).name, tile_m, tile_n, stages);
  if (cluster > 1) text += fmt::format(" cluster {}", cluster);
  return text;
}

const GemmImplementation& implementation_of(const GemmSchedule& schedule) {
  return k_implementations[static_cast<size_t>(schedule.kind)];
}

std::vector<GemmSchedule> ranked_schedules(const GemmProblem& problem, const CudaTarget& target,
                                           const Machine& machine) {
  std::vector<GemmSchedule> schedules;
  for (const bool pays : {true, false}) {
    for (auto row = k_implementations.rbegin(); row != k_implementations.rend(); ++row) {
      if (!row->claims(problem, target) || row->pays(problem) != pays) continue;
      std::ranges::copy(best_first(*row, problem, target, machine), std::back_inserter(schedules));
    }
  }
  return schedules;
}

GemmSchedule schedule_for_any_address(const GemmProblem& problem, const CudaTarget& target) {
  const auto schedules = ranked_schedules(problem, target, default_machine(target));
  return *std::ranges::find_if(
      schedules, [](const GemmSchedule& schedule) { return implementation_of(schedule).takes_any_address; });
}

Schedule to_schedule(const GemmSchedule& schedule) {
  return {encode_choices(schedule, implementation_of(schedule).name), schedule.describe()};
}

Expected<GemmSchedule> gemm_schedule_of(std::span<const uint8_t> bytes, const GemmProblem& problem,
                                        const CudaTarget& target) {
  KILN_ASSIGN_OR_RETURN(const ScheduleBytes opened, open_schedule(bytes));
  const auto row = std::ranges::find(k_implementations, opened.implementation, &GemmImplementation::name);
  if (row == k_implementations.end()) {
    return invalid_argument("cuda gemm: no implementation \"{}\"", opened.implementation);
  }
  KILN_ASSIGN_OR_RETURN(GemmSchedule schedule, parse_choices<GemmSchedule>(bytes, row->name));
  schedule.kind = kind_of(*row);
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("cuda gemm, {}: {}", schedule.describe(), why);
  };
  if (!row->claims(problem, target)) return refuse("not for this product on this target");
  if (!row->makes(schedule)) return refuse("the template makes no such tile");
  if (schedule.shared_bytes(accumulator_of(problem.gemm->dtype)) > target.shared_bytes) {
    return refuse("more shared memory than a block has");
  }
  return schedule;
}

}  // namespace kiln::cuda
