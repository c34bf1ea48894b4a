#pragma once

#include <cstdint>

#include "backends/cpu/compile/emit/split.h"
#include "backends/cpu/compile/gemm/problem.h"
#include "backends/machine.h"

namespace kiln::cpu {

/// How the kernel of a tile reads A.
enum class ReadA : uint8_t {
  direct = 0,  // where it lies
  rows = 1,    // packed, k-contiguous: evaluated with lanes along k
  panels = 2,  // packed [k][rows of the tile]: evaluated with lanes along m
};
/// How the kernel of a tile reads B.
enum class ReadB : uint8_t {
  direct = 0,      // where it lies, n-contiguous
  panels = 1,      // packed [k][columns of the tile]: evaluated with lanes along n
  transposed = 2,  // packed the same way from k-contiguous columns, by transposing blocks in registers
  placed = 3,      // where it lies, in panels of a vector each (GemmProblem::panel_steps)
};

/// How the loops around a tile's kernel cut a product. Columns are counted in units: vectors of sums, or single columns.
/// Tiles are maxima: m and n are cut into tiles that differ by at most one row and one unit.
struct GemmBlocking {
  int64_t unit = 1;  // columns
  int64_t tile_rows = 1, tile_units = 1;
  int64_t group_rows = 1;     // rows of A packed at a time
  int64_t k_block = 1;        // steps of k between two visits to memory, at most k and at least 1
  bool is_one_block = false;  // where k is the launch's: it is known to be no more than that
  int64_t slab_units = 1;     // width of the part of B kept in the second-level cache; the grid's outer dim
  int64_t row_parts = 1;      // the grid's inner dim: parts of m, merged again within one call
  ReadA read_a = ReadA::direct;
  ReadB read_b = ReadB::direct;

  bool packs_a() const { return read_a != ReadA::direct; }
  bool packs_b() const { return read_b == ReadB::panels || read_b == ReadB::transposed; }
};

/// The same with its grid settled: the slabs and the parts of m are counted so that tasks are worth handing out and the
/// machine's threads share them evenly.
GemmBlocking with_parts(GemmBlocking blocking, const GemmProblem& problem, const Machine& machine);

/// The same of a schedule that names its slabs and parts as the blocking of vectors does.
template <typename Schedule>
Schedule with_parts(Schedule schedule, const GemmProblem& problem, const Machine& machine) {
  const GemmBlocking settled = with_parts(schedule.blocking(problem), problem, machine);
  schedule.slab_vectors = static_cast<uint32_t>(settled.slab_units);
  schedule.row_parts = static_cast<uint32_t>(settled.row_parts);
  return schedule;
}

/// What slabs of B take of the second-level cache, in bytes: half, since the rows of A and C pass through the rest.
int64_t second_level_share(const Machine& machine);
/// How many units of a slab fit into that, a whole number of tiles and at least one.
int64_t second_level_slab(const Machine& machine, int64_t unit_bytes, int64_t tile_units);

/// How many tasks are worth handing out where none repeats what another does.
int64_t worthwhile_tasks(const GemmProblem& problem);

/// Schedule::tile.
std::vector<int64_t> smallest_tile(const GemmBlocking& blocking, const GemmProblem& problem, bool is_exchanged);

/// A blocking of one problem: what is cut into how many pieces.
struct GemmGrid {
  Split rows;          // tiles of m
  Split columns;       // tiles of units
  Split slabs;         // of column tiles
  Split parts;         // of row tiles
  int64_t blocks = 1;  // of k
  int64_t tail = 0;    // columns of the last unit where it is not whole

  GemmGrid(const GemmBlocking& blocking, const GemmProblem& problem);
  /// One slab and one part, as large as the blocking lets them be: what code for any size has room for.
  static GemmGrid of_any_size(const GemmBlocking& blocking);

 private:
  GemmGrid() = default;
};

}  // namespace kiln::cpu
