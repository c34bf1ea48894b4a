#include <algorithm>
#include <array>

#include "backends/cpu/compile/gemm/amx.h"
#include "base/ceil_div.h"

/// Which tile, which blocks.
///
/// A multiply of registers takes 16 cycles, a load of one 8 from the first-level cache and some 21 from the second. Of a
/// tile of r x c registers that makes 16 r c cycles of multiplication beside 8 r + 21 c of loads: 2 x 2 is balanced, and
/// for 16 rows or less 1 x 4 is the best there is. Sizes are split evenly, so that a product of 33 rows has three tiles of
/// 11 rather than one of 32 and one of 1; the registers that these take are what counts.
///
/// The rows of A of a tile are read again for each tile of columns, and stay in the first-level cache up to some 512
/// elements along k. A longer block asks the second-level cache for them as well, a shorter one moves the sums more often.
namespace kiln::cpu {
namespace {

struct Tile {
  uint16_t registers, vectors;
};

constexpr std::array k_tiles{Tile{2, 2}, Tile{1, 4}, Tile{3, 1}, Tile{1, 2}};
// Steps of a block at most, the best first: where the rows of A are read again, and where they come from memory once.
constexpr std::array<int64_t, 4> k_blocks{512, 128, 256, 1024}, k_streamed_blocks{1024, 512, 256, 128};
constexpr int64_t k_group_rows = 128;
constexpr int64_t k_streamed_tiles = 2;                  // of columns: for more the rows' own time is small
constexpr int64_t k_streamed_bytes = int64_t{40} << 20;  // of less the hardware's own prefetching is as good

/// Cycles per instruction's steps of k, of the whole product.
double problem_cycles(const GemmProblem& problem, Tile tile) {
  const int64_t rows = AmxSchedule::k_register_rows;
  const int64_t row_tiles = ceil_div(problem.gemm->m, tile.registers * rows);
  const int64_t columns = ceil_div(problem.gemm->n, problem.sum_lanes());
  const int64_t column_tiles = ceil_div(columns, tile.vectors);
  const auto registers = static_cast<double>(ceil_div(ceil_div(problem.gemm->m, row_tiles), rows));
  const auto vectors = static_cast<double>(columns) / static_cast<double>(column_tiles);
  const double cycles = std::max(16 * registers * vectors, 8 * registers + 21 * vectors);
  return static_cast<double>(row_tiles * column_tiles) * cycles;
}

std::vector<Tile> ranked_tiles(const GemmProblem& problem) {
  std::vector<Tile> tiles(k_tiles.begin(), k_tiles.end());
  std::ranges::stable_sort(tiles, {}, [&](const Tile& tile) { return problem_cycles(problem, tile); });
  return tiles;
}

/// Whether rows of A are read where they lie, for a few tiles of columns.
bool streams_a(const GemmProblem& problem, Tile tile) {
  return problem.reads_a_directly() && problem.gemm->n <= k_streamed_tiles * tile.vectors * problem.sum_lanes();
}

int64_t a_bytes(const GemmProblem& problem) { return problem.gemm->m * problem.gemm->k * problem.a.element_bytes(); }

AmxSchedule schedule_for(const GemmProblem& problem, const Machine& machine, Tile tile, int64_t longest_block) {
  const int64_t at_once = problem.types.steps_at_once, steps = std::max(problem.steps(), at_once);
  AmxSchedule schedule;
  schedule.read_a = problem.reads_a_directly() ? ReadA::direct : ReadA::rows;
  schedule.read_b = problem.b.k_lanes ? ReadB::transposed : ReadB::panels;
  schedule.tile_rows = static_cast<uint16_t>(tile.registers * AmxSchedule::k_register_rows);
  schedule.tile_vectors = tile.vectors;
  schedule.group_rows = k_group_rows;
  const int64_t blocks = ceil_div(steps, longest_block);
  schedule.k_block = static_cast<uint32_t>(ceil_div(ceil_div(steps, blocks), at_once) * at_once);
  schedule.slab_vectors = static_cast<uint32_t>(
      second_level_slab(machine, int64_t{schedule.k_block} * problem.packed_vector_bytes(), tile.vectors));
  schedule.prefetch_a = streams_a(problem, tile) && a_bytes(problem) > k_streamed_bytes;
  return with_parts(schedule, problem, machine);
}

}  // namespace

std::vector<AmxSchedule> ranked_amx_schedules(const GemmProblem& problem, const Machine& machine) {
  std::vector<AmxSchedule> schedules;
  const auto add = [&](const AmxSchedule& schedule) {
    if (std::ranges::find(schedules, schedule) == schedules.end()) schedules.push_back(schedule);
  };
  std::vector<AmxSchedule> copying;  // those that copy rows of A, which seldom pays
  for (const Tile& tile : ranked_tiles(problem)) {
    const bool streams = streams_a(problem, tile);
    for (const int64_t longest_block : streams ? k_streamed_blocks : k_blocks) {
      AmxSchedule schedule = schedule_for(problem, machine, tile, longest_block);
      add(schedule);
      schedule.prefetch_a = streams && !schedule.prefetch_a;
      add(schedule);
      schedule.prefetch_a = false;
      schedule.read_a = ReadA::rows;
      copying.push_back(schedule);
    }
  }
  for (const AmxSchedule& schedule : copying) add(schedule);
  return schedules;
}

Status AmxSchedule::validate(const GemmProblem& problem) const {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("gemm by tiles, {}: {}", describe(problem), why);
  };
  if (tile_rows == 0 || tile_vectors == 0 || group_rows == 0 || k_block == 0 || slab_vectors == 0 || row_parts == 0) {
    return refuse("a zero extent");
  }
  if (read_a != ReadA::direct && read_a != ReadA::rows) return refuse("no such way to read A");
  if (read_b != ReadB::panels && read_b != ReadB::transposed) return refuse("no such way to read B");
  if (read_a == ReadA::direct && !problem.reads_a_directly()) return refuse("A cannot be multiplied where it lies");
  if (prefetch_a && read_a != ReadA::direct) return refuse("a copy of A needs no prefetch");
  if (k_block % problem.types.steps_at_once != 0) return refuse("a block of k is no whole number of instructions");
  // The sums, a column of registers of A, and one of B.
  const int64_t registers = ceil_div(tile_rows, k_register_rows);
  if (registers * tile_vectors + registers + 1 > k_registers) return refuse("the tile needs more registers");
  return {};
}

GemmBlocking AmxSchedule::blocking(const GemmProblem& problem) const {
  return {.unit = problem.sum_lanes(),
          .tile_rows = tile_rows,
          .tile_units = tile_vectors,
          .group_rows = group_rows,
          .k_block = std::clamp<int64_t>(problem.steps(), problem.types.steps_at_once, k_block),
          .slab_units = slab_vectors,
          .row_parts = row_parts,
          .read_a = read_a,
          .read_b = read_b};
}

std::string AmxSchedule::describe(const GemmProblem& problem) const {
  return fmt::format("amx {}x{} k {} slab {} parts {}{}{}{}", tile_rows, tile_vectors * problem.sum_lanes(),
                     k_block * problem.k_group(), slab_vectors * problem.sum_lanes(), row_parts,
                     read_a == ReadA::direct ? prefetch_a ? " a-ahead" : "" : " a-rows",
                     read_b == ReadB::panels ? " b-panels" : " b-transposed", exchanged ? " exchanged" : "");
}

}  // namespace kiln::cpu
