#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "backends/cpu/compile/gemm/outer_product.h"
#include "base/ceil_div.h"
#include "frontend/kernel/expensive.h"

/// Which tile, which blocks.
///
/// The kernel keeps a tile of C in registers and walks k. Per k step of a tile of r rows and v vectors it issues r*v
/// multiply-adds (two a cycle), r + v loads (two a cycle; on AVX-512 the broadcast of A is an operand of the
/// multiply-add and still a load), and it needs about eight independent sums to hide the latency of four cycles. The
/// vectors of B come from the second-level cache, so a tile with more rows asks for fewer bytes per cycle. The model
/// adds these up over the tiles that m and n really split into (an odd size may suit a tile that is worse in the
/// middle), and takes the cheapest; runners-up become the further candidates.
///
/// Blocks: a slab of B, k_block x slab columns, stays in the second-level cache while the rows of A pass by. A whole
/// pass over k without visiting memory in between is best as long as the slab is not too narrow.
///
/// Packing costs a load and a store per element of B and is repaid by sequential reads, m times. It is left out where
/// B is small enough to stay in the caches as it lies, or m is too small to repay it. Where it also converts, it spares
/// the kernel that, and where rows of B begin within vectors, it spares it loads that cross lines: then only a small m is
/// a reason to do without.
///
/// All of this counts steps of k, whatever a step multiplies.
namespace kiln::cpu {
namespace {

struct Tile {
  int rows, vectors;
};

constexpr std::array k_tiles_32_registers{Tile{8, 3},  Tile{6, 4},  Tile{5, 5},  Tile{4, 6},
                                          Tile{12, 2}, Tile{14, 2}, Tile{24, 1}, Tile{28, 1}};
constexpr std::array k_tiles_16_registers{Tile{6, 2}, Tile{4, 3}, Tile{12, 1}, Tile{8, 1}, Tile{5, 2}, Tile{3, 3}};
constexpr std::array k_flat_tiles{Tile{1, 4}, Tile{1, 8}, Tile{2, 4}, Tile{3, 4}, Tile{4, 4},
                                  Tile{4, 2}, Tile{2, 8}, Tile{3, 8}, Tile{4, 6}};

constexpr int64_t k_direct_b_bytes = 512 << 10;  // below it, B is read where it lies
constexpr int64_t k_direct_a_bytes = 64 << 10;   // below it, A is
constexpr int64_t k_output_bytes = 1 << 20;      // above it, C has left the caches when a tile is stored
constexpr int64_t k_rows_to_repay_packing = 48;
constexpr int64_t k_rows_to_repay_aligning = 16;  // where rows of B begin within vectors
constexpr int64_t k_lanes_to_transpose = 4;
constexpr int64_t k_first_level_bytes = 32 << 10;  // where the machine does not say
constexpr int64_t k_short_block = 384;
constexpr int k_largest_unroll = 16;

ReadA choose_read_a(const GemmProblem& problem) {
  const GemmOperand& a = problem.a;
  if (problem.reads_a_directly()) {
    const bool small = problem.gemm->m * problem.steps() * problem.packed_bytes() <= k_direct_a_bytes;
    const bool few_uses = problem.gemm->n <= 2 * problem.sum_lanes();
    if (a.k_stride == 1 || small || few_uses || problem.gemm->m == 1) return ReadA::direct;
  }
  return a.k_lanes ? ReadA::rows : ReadA::panels;
}

/// Whether lines of A, read where it lies, drive each other out of the first-level cache: rows a page apart share a set of
/// it, which holds as many lines as the cache has pages, and one of these is for what else passes through.
bool crowds_first_level(const GemmProblem& problem, const Machine& machine, int64_t rows) {
  const int64_t stride = std::abs(problem.a.tile_stride) * problem.a.element_bytes();
  if (choose_read_a(problem) != ReadA::direct || problem.a.k_stride != 1 || stride == 0) return false;
  const auto cache_bytes = static_cast<int64_t>(machine.first_level_bytes);
  const int64_t lines = (cache_bytes == 0 ? k_first_level_bytes : cache_bytes) / k_page_bytes;
  const int64_t sets = k_page_bytes / std::gcd(stride, k_page_bytes);
  return ceil_div(rows, sets) >= lines;
}

/// Cycles per k step of one tile, of whose rows `distant` come from the second-level cache at each step.
double tile_cycles(double rows, double vectors, double distant) {
  const double multiply = rows * vectors / 2;
  const double loads = (rows + vectors) / 2;
  const double second_level = (vectors + distant) / 1.2;  // 64 bytes every 1.2 cycles
  // The parts overlap, but not perfectly.
  return std::max({multiply, loads, second_level, 4.0}) + 0.08 * (loads + second_level);
}

/// Cycles per k step of the whole problem, cut into tiles of at most `tile`.
double problem_cycles(const GemmProblem& problem, const Machine& machine, Tile tile) {
  const int64_t vectors = ceil_div(problem.gemm->n, problem.sum_lanes());
  const int64_t row_tiles = ceil_div(problem.gemm->m, tile.rows);
  const int64_t column_tiles = ceil_div(vectors, tile.vectors);
  double cycles = 0;
  for (int big_row : {0, 1}) {
    const int64_t rows = problem.gemm->m / row_tiles + big_row;
    const double distant = crowds_first_level(problem, machine, rows) ? static_cast<double>(rows) : 0;
    const int64_t row_count = big_row ? problem.gemm->m % row_tiles : row_tiles - problem.gemm->m % row_tiles;
    for (int big_column : {0, 1}) {
      const int64_t width = vectors / column_tiles + big_column;
      const int64_t count = big_column ? vectors % column_tiles : column_tiles - vectors % column_tiles;
      cycles += static_cast<double>(row_count * count) *
                tile_cycles(static_cast<double>(rows), static_cast<double>(width), distant);
    }
  }
  return cycles;
}

std::vector<Tile> ranked_tiles(const GemmProblem& problem, const Machine& machine) {
  std::vector<Tile> tiles;
  const int64_t vectors = ceil_div(problem.gemm->n, problem.sum_lanes());
  const auto consider = [&](Tile tile) {
    tile.rows = static_cast<int>(std::min<int64_t>(tile.rows, problem.gemm->m));
    tile.vectors = static_cast<int>(std::min<int64_t>(tile.vectors, vectors));
    const int needed = tile.rows * tile.vectors + tile.vectors + 1;
    const bool known = std::any_of(tiles.begin(), tiles.end(), [&](const Tile& other) {
      return other.rows == tile.rows && other.vectors == tile.vectors;
    });
    if (needed <= problem.registers && !known) tiles.push_back(tile);
  };
  if (problem.registers == 32) {
    for (Tile tile : k_tiles_32_registers) consider(tile);
  } else {
    for (Tile tile : k_tiles_16_registers) consider(tile);
  }
  if (problem.gemm->m <= 4) {
    for (Tile tile : k_flat_tiles) consider(tile);
  }
  std::stable_sort(tiles.begin(), tiles.end(), [&](const Tile& a, const Tile& b) {
    return problem_cycles(problem, machine, a) < problem_cycles(problem, machine, b);
  });
  return tiles;
}

/// Operations that make straight-line code over a whole tile too long, or need too many registers beside it.
bool is_heavy(ScalarOp op) { return is_expensive(op) || op == ScalarOp::div || op == ScalarOp::rsqrt; }

bool is_small_b(const GemmProblem& problem) {
  return problem.gemm->n * problem.gemm->k * problem.b.element_bytes() <= k_direct_b_bytes;
}

ReadB choose_read_b(const GemmProblem& problem) {
  const GemmOperand& b = problem.b;
  if (problem.panel_steps() > 0) return ReadB::placed;
  if (problem.reads_b_directly()) {
    const bool is_aligned = b.k_stride % problem.sum_lanes() == 0;
    const bool is_cheap = is_small_b(problem) && !problem.converts(b) && is_aligned;
    const int64_t repaid_by = is_aligned ? k_rows_to_repay_packing : k_rows_to_repay_aligning;
    return is_cheap || problem.gemm->m < repaid_by ? ReadB::direct : ReadB::panels;
  }
  const bool transposable = problem.sum_lanes() >= k_lanes_to_transpose;
  return b.k_lanes && transposable ? ReadB::transposed : ReadB::panels;
}

/// The most k steps between two visits to memory.
int64_t longest_block(const GemmProblem& problem, const OuterProductSchedule& schedule) {
  int64_t steps = problem.registers == 32 ? 1024 : 512;
  // Few rows repay packing best when B is read along wide rows; a packed A is packed once per slab.
  if (schedule.read_b == ReadB::panels && problem.gemm->m < 256) steps = std::min<int64_t>(steps, 384);
  if (schedule.read_a == ReadA::panels) steps = std::min<int64_t>(steps, 256);
  return steps * 4 / problem.packed_bytes();
}

/// Blocks of k as even as they can be, about `longest` steps at most: whole runs, but for a packed A, which is worse where its
/// blocks are longer.
int64_t even_block(const GemmProblem& problem, const OuterProductSchedule& schedule, int64_t longest) {
  const int64_t k = std::max<int64_t>(problem.steps(), 1), even = ceil_div(k, ceil_div(k, longest));
  return schedule.read_a == ReadA::panels && problem.sum_order().window == 1 ? even : problem.in_whole_runs(even);
}

OuterProductSchedule schedule_for(const GemmProblem& problem, const Machine& machine, Tile tile) {
  const auto& gemm = *problem.gemm;
  const int64_t k = std::max<int64_t>(problem.steps(), 1);
  OuterProductSchedule schedule;
  schedule.read_a = choose_read_a(problem);
  schedule.read_b = choose_read_b(problem);
  schedule.rolled_epilogue = needs_rolled_epilogue(problem);
  schedule.tile_rows = static_cast<uint16_t>(tile.rows);
  schedule.tile_vectors = static_cast<uint16_t>(tile.vectors);
  schedule.prefetch_output = gemm.m * gemm.n * problem.sum_bytes() > k_output_bytes;

  const bool streamed = schedule.read_b == ReadB::direct && !is_small_b(problem);
  if (streamed) {
    // Memory bound: read B row after row, the partial sums wait in the first-level cache.
    schedule.k_block = static_cast<uint32_t>(std::min<int64_t>(k, gemm.m <= 4 ? 16 : 32));
    schedule.slab_vectors = static_cast<uint32_t>(ceil_div(ceil_div(gemm.n, problem.sum_lanes()), 2));
  } else {
    const bool is_placed = schedule.read_b == ReadB::placed;
    schedule.k_block = static_cast<uint32_t>(
        is_placed ? problem.panel_steps() : even_block(problem, schedule, longest_block(problem, schedule)));
    schedule.slab_vectors = static_cast<uint32_t>(
        second_level_slab(machine, schedule.k_block * problem.packed_vector_bytes(), tile.vectors));
  }
  const int64_t group = second_level_share(machine) / 10 / (schedule.k_block * problem.packed_bytes());
  schedule.group_rows = static_cast<uint32_t>(std::max<int64_t>(group / tile.rows, 1) * tile.rows);
  schedule.row_parts = 1;
  return streamed ? schedule : with_parts(schedule, problem, machine);
}

OuterProductSchedule with_shorter_k(OuterProductSchedule schedule, const GemmProblem& problem, const Machine& machine) {
  const int64_t slab = int64_t{schedule.slab_vectors} * schedule.k_block / k_short_block / schedule.tile_vectors;
  schedule.slab_vectors = static_cast<uint32_t>(std::max<int64_t>(1, slab) * schedule.tile_vectors);
  schedule.k_block = static_cast<uint32_t>(even_block(problem, schedule, k_short_block));
  return with_parts(schedule, problem, machine);
}

}  // namespace

bool needs_rolled_epilogue(const GemmProblem& problem) {
  const Body& body = problem.gemm->epilogue;
  size_t operations = problem.gemm->stores.size();
  for (const ScalarNode& node : body.exprs) {
    if (is_heavy(node.op)) return true;
    operations += node.op != ScalarOp::constant && node.op != ScalarOp::accumulator;
  }
  const bool indirect = std::any_of(body.accesses.begin(), body.accesses.end(),
                                    [](const Access& access) { return !access.indirect.empty(); });
  return indirect || operations > 8;
}

std::vector<OuterProductSchedule> ranked_schedules(const GemmProblem& problem, const Machine& machine) {
  std::vector<OuterProductSchedule> schedules;
  const auto add = [&](const OuterProductSchedule& schedule) {
    if (std::find(schedules.begin(), schedules.end(), schedule) == schedules.end()) schedules.push_back(schedule);
  };
  for (const Tile& tile : ranked_tiles(problem, machine)) {
    const OuterProductSchedule first = schedule_for(problem, machine, tile);
    add(first);
    if (problem.steps() > k_short_block && first.read_b != ReadB::placed) add(with_shorter_k(first, problem, machine));
    if (problem.reads_b_directly()) {  // the other way to read B
      OuterProductSchedule other = first;
      other.read_b = first.read_b == ReadB::direct ? ReadB::panels : ReadB::direct;
      add(other);
    }
  }
  return schedules;
}

Status OuterProductSchedule::validate(const GemmProblem& problem) const {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("gemm by outer products, {}: {}", describe(problem), why);
  };
  if (tile_rows == 0 || tile_vectors == 0 || group_rows == 0 || k_block == 0 || slab_vectors == 0 || row_parts == 0) {
    return refuse("a zero extent");
  }
  if (read_a > ReadA::panels || read_b > ReadB::placed) return refuse("no such way to read an operand");
  if (unroll == 0 || unroll > k_largest_unroll) return refuse("its loop over k is not unrolled 1 to 16 times");
  // The sums, a row of B, and an element of A.
  if (int64_t{tile_rows} * tile_vectors + tile_vectors + 1 > problem.registers)
    return refuse("the tile needs more registers");
  if (read_a == ReadA::direct && !problem.reads_a_directly()) return refuse("A cannot be multiplied where it lies");
  if (read_b == ReadB::direct && !problem.reads_b_directly()) return refuse("B cannot be multiplied where it lies");
  if (read_b == ReadB::transposed && problem.sum_lanes() < k_lanes_to_transpose) {
    return refuse("vectors of the target are too short to transpose B");
  }
  if (read_b == ReadB::placed && (problem.panel_steps() == 0 || problem.panel_steps() % k_block != 0)) {
    return refuse("B does not lie in panels of whole blocks");
  }
  return {};
}

GemmBlocking OuterProductSchedule::blocking(const GemmProblem& problem) const {
  return {.unit = problem.sum_lanes(),
          .tile_rows = tile_rows,
          .tile_units = tile_vectors,
          .group_rows = group_rows,
          .k_block = std::clamp<int64_t>(problem.steps(), 1, k_block),
          .slab_units = slab_vectors,
          .row_parts = row_parts,
          .read_a = read_a,
          .read_b = read_b};
}

std::string OuterProductSchedule::describe(const GemmProblem& problem) const {
  constexpr std::array k_read_a{"", " a-rows", " a-panels"};
  constexpr std::array k_read_b{"", " b-panels", " b-transposed", " b-placed"};
  return fmt::format("tile {}x{} k {} slab {} parts {}{}{}{}{}{}", tile_rows, tile_vectors * problem.sum_lanes(),
                     k_block * problem.k_group(), slab_vectors * problem.sum_lanes(), row_parts,
                     k_read_a[static_cast<size_t>(read_a) % 3], k_read_b[static_cast<size_t>(read_b) % 4],
                     rolled_epilogue ? " rolled" : "", exchanged ? " exchanged" : "",
                     how_multiplied(problem.types.step));
}

}  // namespace kiln::cpu
