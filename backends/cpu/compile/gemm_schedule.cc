#include "backends/cpu/compile/gemm_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/bytes.h"
#include "frontend/fuse/expensive.h"

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
/// B is small enough to stay in the caches as it lies, or m is too small to repay it.
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

constexpr int64_t k_slab_bytes_avx512 = 1 << 20;  // half of a server core's second-level cache
constexpr int64_t k_slab_bytes = 256 << 10;
constexpr int64_t k_direct_b_bytes = 512 << 10;  // below it, B is read where it lies
constexpr int64_t k_dot_slab_bytes = 128 << 10;
constexpr int64_t k_first_level_bytes = 64 << 10;
constexpr int64_t k_rows_to_repay_packing = 48;
constexpr int64_t k_rows_for_dot = 32;
constexpr int64_t k_tasks = 16;               // enough for eight threads to share evenly
constexpr double k_flops_per_task = 1 << 20;  // about ten microseconds
constexpr size_t k_max_candidates = 12;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Cycles per k step of one tile.
double tile_cycles(double rows, double vectors) {
  const double multiply = rows * vectors / 2;
  const double loads = (rows + vectors) / 2;
  const double second_level = vectors / 1.2;  // 64 bytes every 1.2 cycles
  // The parts overlap, but not perfectly.
  return std::max({multiply, loads, second_level, 4.0}) + 0.08 * (loads + second_level);
}

/// Cycles per k step of the whole problem, cut into tiles of at most `tile`.
double problem_cycles(const GemmProblem& problem, Tile tile) {
  const int64_t vectors = ceil_div(problem.gemm->n, problem.lanes);
  const int64_t row_tiles = ceil_div(problem.gemm->m, tile.rows);
  const int64_t column_tiles = ceil_div(vectors, tile.vectors);
  double cycles = 0;
  for (int big_row : {0, 1}) {
    const int64_t rows = problem.gemm->m / row_tiles + big_row;
    const int64_t row_count = big_row ? problem.gemm->m % row_tiles : row_tiles - problem.gemm->m % row_tiles;
    for (int big_column : {0, 1}) {
      const int64_t width = vectors / column_tiles + big_column;
      const int64_t count = big_column ? vectors % column_tiles : column_tiles - vectors % column_tiles;
      cycles += static_cast<double>(row_count * count) * tile_cycles(rows, width);
    }
  }
  return cycles;
}

std::vector<Tile> ranked_tiles(const GemmProblem& problem) {
  std::vector<Tile> tiles;
  const int64_t vectors = ceil_div(problem.gemm->n, problem.lanes);
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
    return problem_cycles(problem, a) < problem_cycles(problem, b);
  });
  return tiles;
}

/// Operations that make straight-line code over a whole tile too long, or need too many registers beside it.
bool is_heavy(ScalarOp op) { return is_expensive(op) || op == ScalarOp::div || op == ScalarOp::rsqrt; }

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

GemmSchedule::ReadA choose_read_a(const GemmProblem& problem) {
  const GemmOperand& a = problem.a;
  if (a.plain != nullptr) {
    const bool small = problem.gemm->m * problem.gemm->k * problem.element_bytes <= k_first_level_bytes;
    const bool few_uses = problem.gemm->n <= 2 * problem.lanes;
    if (a.k_stride == 1 || small || few_uses || problem.gemm->m == 1) return GemmSchedule::ReadA::direct;
  }
  return a.k_lanes ? GemmSchedule::ReadA::rows : GemmSchedule::ReadA::panels;
}

bool is_small_b(const GemmProblem& problem) {
  return problem.gemm->n * problem.gemm->k * problem.element_bytes <= k_direct_b_bytes;
}

GemmSchedule::ReadB choose_read_b(const GemmProblem& problem) {
  const GemmOperand& b = problem.b;
  if (b.plain != nullptr && b.tile_stride == 1) {
    const bool direct = is_small_b(problem) || problem.gemm->m < k_rows_to_repay_packing;
    return direct ? GemmSchedule::ReadB::direct : GemmSchedule::ReadB::panels;
  }
  const bool transposable = problem.lanes >= 4;
  return b.k_lanes && transposable ? GemmSchedule::ReadB::transposed : GemmSchedule::ReadB::panels;
}

bool fits_dot(const GemmProblem& problem) {
  const auto k_contiguous = [](const GemmOperand& operand) {
    return operand.plain != nullptr && operand.k_stride == 1;
  };
  return k_contiguous(problem.a) && k_contiguous(problem.b) && is_floating(problem.compute) &&
         problem.gemm->k >= problem.lanes && problem.gemm->m <= k_rows_for_dot;
}

/// The grid: slabs of columns times parts of the rows.
void choose_parts(GemmSchedule& schedule, const GemmProblem& problem) {
  const auto& gemm = *problem.gemm;
  const bool dot = schedule.form == GemmSchedule::Form::dot;
  const int64_t columns = dot ? gemm.n : ceil_div(gemm.n, problem.lanes);
  const int64_t column_tiles = ceil_div(columns, schedule.tile_vectors);
  const int64_t row_tiles = ceil_div(gemm.m, schedule.tile_rows);
  const double flops = 2.0 * static_cast<double>(problem.batches) * static_cast<double>(gemm.m) *
                       static_cast<double>(gemm.n) * static_cast<double>(std::max<int64_t>(gemm.k, 1));
  const auto wanted = static_cast<int64_t>(std::clamp(flops / k_flops_per_task, 1.0, double{k_tasks}));
  int64_t slabs = ceil_div(columns, schedule.slab_vectors);
  const int64_t rest = ceil_div(wanted, problem.batches * slabs);
  int64_t parts = std::min(rest, row_tiles);
  // Too few rows to share: share the columns instead.
  if (parts < rest) slabs = std::min(column_tiles, slabs * ceil_div(rest, parts));
  schedule.slab_vectors = static_cast<uint32_t>(ceil_div(column_tiles, slabs) * schedule.tile_vectors);
  schedule.row_parts = static_cast<uint32_t>(parts);
}

/// The most k steps between two visits to memory.
int64_t longest_block(const GemmProblem& problem, const GemmSchedule& schedule) {
  int64_t steps = problem.registers == 32 ? 1024 : 512;
  // Few rows repay packing best when B is read along wide rows; a packed A is packed once per slab.
  if (schedule.read_b == GemmSchedule::ReadB::panels && problem.gemm->m < 256) steps = std::min<int64_t>(steps, 384);
  if (schedule.read_a == GemmSchedule::ReadA::panels) steps = std::min<int64_t>(steps, 256);
  return steps * 4 / problem.element_bytes;
}

GemmSchedule outer_product(const GemmProblem& problem, Tile tile) {
  const auto& gemm = *problem.gemm;
  const int64_t k = std::max<int64_t>(gemm.k, 1);
  GemmSchedule schedule;
  schedule.read_a = choose_read_a(problem);
  schedule.read_b = choose_read_b(problem);
  schedule.rolled_epilogue = needs_rolled_epilogue(problem);
  schedule.tile_rows = static_cast<uint16_t>(tile.rows);
  schedule.tile_vectors = static_cast<uint16_t>(tile.vectors);
  schedule.prefetch_output = gemm.m * gemm.n * problem.element_bytes > k_slab_bytes_avx512;

  const int64_t slab_bytes = problem.registers == 32 ? k_slab_bytes_avx512 : k_slab_bytes;
  const int64_t vector_bytes = problem.lanes * problem.element_bytes;
  const bool streamed = schedule.read_b == GemmSchedule::ReadB::direct && !is_small_b(problem);
  if (streamed) {
    // Memory bound: read B row after row, the partial sums wait in the first-level cache.
    schedule.k_block = static_cast<uint32_t>(std::min<int64_t>(k, gemm.m <= 4 ? 16 : 32));
    schedule.slab_vectors = static_cast<uint32_t>(ceil_div(ceil_div(gemm.n, problem.lanes), 2));
  } else {
    const int64_t blocks = ceil_div(k, longest_block(problem, schedule));
    schedule.k_block = static_cast<uint32_t>(ceil_div(k, blocks));
    const int64_t slab = slab_bytes / (schedule.k_block * vector_bytes);
    schedule.slab_vectors = static_cast<uint32_t>(std::max<int64_t>(slab / tile.vectors, 1) * tile.vectors);
  }
  const int64_t group = slab_bytes / 10 / (schedule.k_block * problem.element_bytes);
  schedule.group_rows = static_cast<uint32_t>(std::max<int64_t>(group / tile.rows, 1) * tile.rows);
  if (streamed) {
    schedule.row_parts = 1;
    return schedule;
  }
  choose_parts(schedule, problem);
  return schedule;
}

GemmSchedule dot(const GemmProblem& problem) {
  GemmSchedule schedule;
  schedule.form = GemmSchedule::Form::dot;
  const bool wide = problem.registers == 32;
  schedule.tile_rows = static_cast<uint16_t>(std::min<int64_t>(problem.gemm->m, wide ? 3 : 2));
  schedule.tile_vectors = static_cast<uint16_t>(std::min({problem.gemm->n, problem.lanes, int64_t{wide ? 8 : 4}}));
  schedule.rolled_epilogue = true;
  schedule.k_block = static_cast<uint32_t>(problem.gemm->k);
  const int64_t slab = k_dot_slab_bytes / (problem.gemm->k * problem.element_bytes) / schedule.tile_vectors;
  schedule.slab_vectors = static_cast<uint32_t>(std::max<int64_t>(slab, 1) * schedule.tile_vectors);
  schedule.unroll = 1;
  choose_parts(schedule, problem);
  return schedule;
}

}  // namespace

std::vector<GemmSchedule> ranked_schedules(const GemmProblem& problem) {
  std::vector<GemmSchedule> candidates;
  const auto add = [&](const GemmSchedule& schedule) {
    if (std::find(candidates.begin(), candidates.end(), schedule) == candidates.end() &&
        candidates.size() < k_max_candidates) {
      candidates.push_back(schedule);
    }
  };
  if (fits_dot(problem)) add(dot(problem));
  const std::vector<Tile> tiles = ranked_tiles(problem);
  const auto with_shorter_k = [&](Tile tile) {
    GemmSchedule schedule = outer_product(problem, tile);
    const auto blocks = static_cast<uint32_t>(ceil_div(std::max<int64_t>(problem.gemm->k, 1), 384));
    schedule.slab_vectors = schedule.slab_vectors * schedule.k_block / 384 / schedule.tile_vectors;
    schedule.slab_vectors = std::max<uint32_t>(1, schedule.slab_vectors) * schedule.tile_vectors;
    schedule.k_block = static_cast<uint32_t>(ceil_div(std::max<int64_t>(problem.gemm->k, 1), blocks));
    choose_parts(schedule, problem);
    return schedule;
  };
  for (const Tile& tile : tiles) {
    add(outer_product(problem, tile));
    if (problem.gemm->k > 384) add(with_shorter_k(tile));
    const GemmOperand& b = problem.b;
    if (b.plain != nullptr && b.tile_stride == 1) {  // the other way to read B
      GemmSchedule other = outer_product(problem, tile);
      const bool direct = other.read_b == GemmSchedule::ReadB::direct;
      other.read_b = direct ? GemmSchedule::ReadB::panels : GemmSchedule::ReadB::direct;
      add(other);
    }
  }
  return candidates;
}

namespace {

/// Calls `visit` on every field, in the order of the encoding.
template <typename Schedule, typename Visit>
void for_each_field(Schedule& schedule, Visit visit) {
  visit(schedule.form);
  visit(schedule.read_a);
  visit(schedule.read_b);
  visit(schedule.rolled_epilogue);
  visit(schedule.prefetch_output);
  visit(schedule.unroll);
  visit(schedule.tile_rows);
  visit(schedule.tile_vectors);
  visit(schedule.group_rows);
  visit(schedule.k_block);
  visit(schedule.slab_vectors);
  visit(schedule.row_parts);
}

}  // namespace

std::vector<uint8_t> encode(const GemmSchedule& schedule) {
  ByteWriter writer;
  for_each_field(schedule, [&](const auto& field) { writer.write(field); });
  return writer.take();
}

Expected<GemmSchedule> decode_gemm_schedule(std::span<const uint8_t> bytes) {
  GemmSchedule schedule;
  size_t at = 0;
  for_each_field(schedule, [&](auto& field) {
    if (at + sizeof field <= bytes.size()) std::memcpy(&field, bytes.data() + at, sizeof field);
    at += sizeof field;
  });
  if (at != bytes.size()) return invalid_argument("gemm schedule is {} bytes, expected {}", bytes.size(), at);
  if (encode(schedule) != std::vector<uint8_t>(bytes.begin(), bytes.end()) || schedule.tile_rows == 0 ||
      schedule.tile_vectors == 0 || schedule.k_block == 0 || schedule.slab_vectors == 0 || schedule.row_parts == 0 ||
      schedule.group_rows == 0 || schedule.unroll == 0) {
    return invalid_argument("gemm schedule has a zero field");
  }
  return schedule;
}

std::string describe(const GemmSchedule& schedule, const GemmProblem& problem) {
  constexpr std::array k_read_a{"", " a-rows", " a-panels"};
  constexpr std::array k_read_b{"", " b-panels", " b-transposed"};
  const bool dot = schedule.form == GemmSchedule::Form::dot;
  const auto width = [&](uint32_t vectors) { return dot ? int64_t{vectors} : vectors * problem.lanes; };
  return fmt::format("{} {}x{} k {} slab {} parts {}{}{}{}", dot ? "dot" : "tile", schedule.tile_rows,
                     width(schedule.tile_vectors), schedule.k_block, width(schedule.slab_vectors), schedule.row_parts,
                     k_read_a[static_cast<size_t>(schedule.read_a) % 3],
                     k_read_b[static_cast<size_t>(schedule.read_b) % 3], schedule.rolled_epilogue ? " rolled" : "");
}

}  // namespace kiln::cpu
