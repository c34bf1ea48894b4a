#include "backends/cpu/compile/gemm/blocking.h"

#include <algorithm>

#include "base/ceil_div.h"

namespace kiln::cpu {
namespace {

constexpr int64_t k_tasks = 16;               // enough for eight threads to share evenly
constexpr double k_flops_per_task = 1 << 20;  // about ten microseconds

Split slabs_of(const GemmBlocking& blocking, const Split& columns) {
  return Split::of(columns.count, std::max<int64_t>(1, blocking.slab_units / blocking.tile_units));
}

}  // namespace

GemmBlocking with_parts(GemmBlocking blocking, const GemmProblem& problem) {
  const auto& gemm = *problem.gemm;
  const int64_t units = ceil_div(gemm.n, blocking.unit);
  const int64_t column_tiles = ceil_div(units, blocking.tile_units);
  const int64_t row_tiles = ceil_div(gemm.m, blocking.tile_rows);
  const double flops = 2.0 * static_cast<double>(problem.batches) * static_cast<double>(gemm.m) *
                       static_cast<double>(gemm.n) * static_cast<double>(std::max<int64_t>(gemm.k, 1));
  const auto wanted = static_cast<int64_t>(std::clamp(flops / k_flops_per_task, 1.0, double{k_tasks}));
  int64_t slabs = ceil_div(units, blocking.slab_units);
  const int64_t rest = ceil_div(wanted, problem.batches * slabs);
  blocking.row_parts = std::min(rest, row_tiles);
  // Too few rows to share: share the columns instead.
  if (blocking.row_parts < rest) slabs = std::min(column_tiles, slabs * ceil_div(rest, blocking.row_parts));
  blocking.slab_units = ceil_div(column_tiles, slabs) * blocking.tile_units;
  return blocking;
}

int64_t second_level_share(const Machine& machine) { return static_cast<int64_t>(machine.second_level_bytes / 2); }

int64_t second_level_slab(const Machine& machine, int64_t unit_bytes, int64_t tile_units) {
  return std::max<int64_t>(second_level_share(machine) / unit_bytes / tile_units, 1) * tile_units;
}

std::vector<int64_t> smallest_tile(const GemmBlocking& blocking, const GemmProblem& problem, bool is_exchanged) {
  const GemmGrid grid(blocking, problem);
  std::vector<int64_t> tile(problem.gemm->batch.size(), 1);
  tile.push_back(grid.rows.small());
  tile.push_back(grid.columns.small() * blocking.unit);
  if (is_exchanged) std::swap(tile[tile.size() - 2], tile[tile.size() - 1]);
  return tile;
}

GemmGrid::GemmGrid(const GemmBlocking& blocking, const GemmProblem& problem)
    : rows(Split::of(problem.gemm->m, blocking.tile_rows)),
      columns(Split::of(ceil_div(problem.gemm->n, blocking.unit), blocking.tile_units)),
      slabs(slabs_of(blocking, columns)),
      parts{rows.count, std::min(blocking.row_parts, rows.count)},
      blocks(std::max<int64_t>(1, ceil_div(problem.steps(), blocking.k_block))),
      tail(problem.gemm->n % blocking.unit) {}

}  // namespace kiln::cpu
