#pragma once

#include "backends/cpu/features.h"
#include "backends/simplified_loops.h"
#include "base/expected.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::cpu {

/// How a (simplified) kernel is laid over vectors.
///
/// Lanes along a parallel dim: each lane is a row of its own; reductions need no combination of lanes. Lanes
/// along a reduced dim: one row at a time, its accumulators' lanes folded at its end.
struct LoopsSchedule {
  static constexpr std::string_view k_implementation = "vector_loops";
  static constexpr uint32_t k_version = 3;

  int8_t lane_dim = -1;  // -1: no dims at all
  uint8_t lanes = 1;
  uint8_t unroll = 1;      // vectors in flight
  int8_t unroll_dim = -1;  // the parallel dim that these lie along, one vector for each index; -1: along the lanes

  bool operator==(const LoopsSchedule&) const = default;
  static auto fields(auto& s) { return std::tie(s.lane_dim, s.lanes, s.unroll, s.unroll_dim); }
  /// Elements of a dim that are in flight together.
  int64_t step_of(int dim) const {
    return int64_t{dim == lane_dim ? lanes : 1} * (dim == (unroll_dim < 0 ? lane_dim : unroll_dim) ? unroll : 1);
  }
  /// Errors: invalid_argument when the loops cannot be laid so.
  Status validate(const LoopsSpec& loops, const CpuTarget& target) const;
  /// "16 lanes along d1, 4 vectors", "16 lanes along d2, 7 vectors along d1"
  std::string describe() const;
};

/// Best first; at least one.
std::vector<LoopsSchedule> ranked_schedules(const LoopsSpec& loops, const CpuTarget& target);

/// The grid: dims before `split` and chunks of `split` are tasks; the rest runs inside a task. Dims in loop
/// order. A parallel lane dim is last, or stands outside of others: these run through it a few vectors at a time.
struct LoopsGrid {
  struct Loop {
    int dim;
    int64_t step;    // elements of a round: those in flight together
    int64_t rounds;  // how many there are
  };
  std::vector<Loop> order;  // parallel dims, outermost first
  int split = -1;           // position in `order`; -1: one task
  int64_t chunk = 0;        // of the split dim's extent
  int64_t chunks = 1;
  int64_t tasks = 1;
};

/// The reduced dims without lanes, as loops run over them, outermost first: in their order, which is the one that torch's kernels
/// sum windows in, where all points are laid out. Else innermost is one along which vectors in flight meet what their
/// neighbours loaded.
std::vector<int> reduced_dims(const LoopsSpec& loops, const LoopsSchedule& schedule);

/// Whether the points of a reduced dim, inside lanes of rows, are laid out one after another, as a kernel's window is: those
/// of it and of the reduced dims inside of it are few.
bool is_laid_out(const LoopsSpec& loops, const LoopsSchedule& schedule, int dim);

LoopsGrid loops_grid(const LoopsSpec& loops, const LoopsSchedule& schedule);

}  // namespace kiln::cpu
