#pragma once

#include "backends/cpu/features.h"
#include "backends/simplified_loops.h"
#include "frontend/fuse/kernel_spec.h"

namespace kiln::cpu {

/// How a (simplified) kernel is laid over vectors.
///
/// Lanes along a parallel dim: each lane is a row of its own; reductions need no combination of lanes. Lanes
/// along a reduced dim: one row at a time, its accumulators' lanes folded at its end.
struct LoopsForm {
  int lane_dim = -1;  // -1: no dims at all
  int lanes = 1;
  int unroll = 1;  // vectors in flight
  bool operator==(const LoopsForm&) const = default;
};

/// Best first; at least one. `spec` holds the buffers the loops' accesses name.
std::vector<LoopsForm> loops_forms(const LoopsSpec& loops, const CpuTarget& target);

/// The grid: dims before `split` and chunks of `split` are tasks; the rest runs inside a task. Dims in loop
/// order.
struct LoopsGrid {
  std::vector<int> order;  // parallel dims, outermost first; a parallel lane dim is last
  int split = -1;          // position in `order`; -1: one task
  int64_t chunk = 0;       // of the split dim's extent
  int64_t chunks = 1;
  int64_t tasks = 1;
};
LoopsGrid loops_grid(const LoopsSpec& loops, const LoopsForm& form);

}  // namespace kiln::cpu
