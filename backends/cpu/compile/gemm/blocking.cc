#include "backends/cpu/compile/gemm/blocking.h"

#include <algorithm>

#include "base/ceil_div.h"

namespace kiln::cpu {
namespace {

constexpr int64_t k_threads = 8;              // the most that tasks are counted for
constexpr int64_t k_tasks = 2 * k_threads;    // where a task repeats nothing that another does
constexpr double k_flops_per_task = 1 << 20;  // about ten microseconds
constexpr double k_uneven = 1.1;              // of an even share: the most that one thread may have
constexpr int64_t k_rows_to_repack = 256;     // whose partial sums the workspace holds, where any number may come

int64_t slab_tiles(const GemmBlocking& blocking) {
  return std::max<int64_t>(1, blocking.slab_units / blocking.tile_units);
}

Split slabs_of(const GemmBlocking& blocking, const Split& columns) {
  return Split::of(columns.count, slab_tiles(blocking));
}

/// How much the thread that has most gets, of an even share.
double unevenness(int64_t pieces, int64_t threads) {
  return static_cast<double>(ceil_div(pieces, threads) * threads) / static_cast<double>(pieces);
}

/// Whether threads share whole slabs: two that have parts of the same slab pack it both. Slabs that are narrow only to be
/// shared have A read more often, which is worth it where B is the larger.
bool shares_slabs(const GemmBlocking& blocking, const GemmProblem& problem, int64_t column_tiles, int64_t threads) {
  const int64_t slabs = problem.batches * ceil_div(column_tiles, slab_tiles(blocking));
  const bool is_even = unevenness(problem.batches * column_tiles, threads) <= k_uneven;
  return is_even && (slabs >= threads || problem.gemm->n >= problem.gemm->m);
}

/// The widest slabs, in tiles, that threads share about as evenly as any.
int64_t shared_width(const GemmBlocking& blocking, const GemmProblem& problem, int64_t column_tiles, int64_t threads) {
  const auto uneven = [&](int64_t width) {
    return unevenness(problem.batches * ceil_div(column_tiles, width), threads);
  };
  int64_t best = std::min(column_tiles, slab_tiles(blocking));
  for (int64_t width = best; width >= 1; --width) {
    if (uneven(width) < uneven(best) - 0.02) best = width;
  }
  return best;
}

/// The fewest parts of the rows, for `slabs` slabs, that threads share evenly.
int64_t shared_parts(const GemmProblem& problem, int64_t slabs, int64_t row_tiles, int64_t threads) {
  int64_t parts = std::min(row_tiles, ceil_div(threads, problem.batches * slabs));
  while (parts < row_tiles && unevenness(problem.batches * slabs * parts, threads) > k_uneven) ++parts;
  return parts;
}

}  // namespace

GemmBlocking with_parts(GemmBlocking blocking, const GemmProblem& problem, const Machine& machine) {
  const auto& gemm = *problem.gemm;
  const int64_t units = ceil_div(gemm.n, blocking.unit);
  const int64_t column_tiles = ceil_div(units, blocking.tile_units);
  const int64_t row_tiles = ceil_div(gemm.m, blocking.tile_rows);
  const auto at_most = [&](int64_t most) { return std::min(worthwhile_tasks(problem), most); };
  int64_t slabs = ceil_div(units, blocking.slab_units);
  if (blocking.packs_b()) {
    const int64_t threads = at_most(machine.cores == 0 ? k_threads : std::min<int64_t>(machine.cores, k_threads));
    const bool is_shared = shares_slabs(blocking, problem, column_tiles, threads);
    const int64_t width =
        is_shared ? shared_width(blocking, problem, column_tiles, threads) : ceil_div(column_tiles, slabs);
    blocking.slab_units = width * blocking.tile_units;
    blocking.row_parts = is_shared ? 1 : shared_parts(problem, slabs, row_tiles, threads);
    return blocking;
  }
  const int64_t rest = ceil_div(at_most(k_tasks), problem.batches * slabs);
  blocking.row_parts = std::min(rest, row_tiles);
  // Too few rows to share: share the columns instead.
  if (blocking.row_parts < rest) slabs = std::min(column_tiles, slabs * ceil_div(rest, blocking.row_parts));
  blocking.slab_units = ceil_div(column_tiles, slabs) * blocking.tile_units;
  return blocking;
}

int64_t worthwhile_tasks(const GemmProblem& problem) {
  const GemmSpec& gemm = *problem.gemm;
  const double flops = 2.0 * static_cast<double>(problem.batches) * static_cast<double>(gemm.m) *
                       static_cast<double>(gemm.n) * static_cast<double>(std::max<int64_t>(gemm.k, 1));
  return static_cast<int64_t>(std::clamp(flops / k_flops_per_task, 1.0, static_cast<double>(k_tasks)));
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

GemmGrid GemmGrid::of_any_size(const GemmBlocking& blocking) {
  GemmGrid grid;
  grid.rows = {blocking.tile_rows, 1};
  grid.columns = {blocking.tile_units, 1};
  grid.slabs = {slab_tiles(blocking), 1};
  grid.parts = {std::max<int64_t>(1, k_rows_to_repack / blocking.tile_rows), 1};
  grid.blocks = blocking.is_one_block ? 1 : 2;
  return grid;
}

GemmGrid::GemmGrid(const GemmBlocking& blocking, const GemmProblem& problem)
    : rows(Split::of(problem.gemm->m, blocking.tile_rows)),
      columns(Split::of(ceil_div(problem.gemm->n, blocking.unit), blocking.tile_units)),
      slabs(slabs_of(blocking, columns)),
      parts{rows.count, std::min(blocking.row_parts, rows.count)},
      blocks(std::max<int64_t>(1, ceil_div(problem.steps(), blocking.k_block))),
      tail(problem.gemm->n % blocking.unit) {}

}  // namespace kiln::cpu
