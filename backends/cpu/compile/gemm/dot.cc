#include "backends/cpu/compile/gemm/dot.h"

#include <algorithm>
#include <type_traits>

#include "backends/cpu/compile/gemm/epilogue.h"
#include "backends/cpu/compile/gemm/implementations.h"
#include "backends/schedule_bytes.h"

/// The dot product: both operands are contiguous along k. Lanes run along k, every sum is a vector, and at the end the
/// vectors of one row of the tile are folded into one. For few rows this saves the transposed packing of B, which could not be repaid.
///
/// Registers hold the sums of some rows. Of a tile with more, all rows pass over a block of the columns that stays in the
/// first-level cache, one after the other, and their sums wait in scratch.
///
/// The epilogue is always rolled, over one vector for each row of the tile.
namespace kiln::cpu {
namespace {

using llvm::Value;

constexpr int64_t k_slab_bytes = 128 << 10;
constexpr int64_t k_held_bytes = 64 << 10;   // of a tile's columns, which each pass reads from the second-level cache
constexpr int64_t k_block_bytes = 16 << 10;  // of a tile's columns, in the first-level cache
constexpr int64_t k_most_rows = 32;          // more repay packing
constexpr int64_t k_largest_tile = 256;      // rows, whose sums wait in scratch
constexpr int64_t k_most_rows_beside_tiles = 4;  // of what AMX has tiles for: it multiplies 16 rows in the time of one

class DotKernel final : public GemmTileKernel {
 public:
  DotKernel(GemmEmission& emission, const DotSchedule& schedule)
      : GemmTileKernel(emission),
        m_schedule(schedule),
        m_epilogue(emission, {.vectors = 1, .has_whole = false, .has_tail = true}) {}

  int64_t scratch_bytes() const override {
    return folded_bytes() + (holds_all() ? 0 : tile_sums() * m_g.sum_vector_bytes());
  }

 private:
  using Sums = Values;  // column by column
  /// Where some rows and the columns of a tile begin.
  struct Operands {
    Value* a = nullptr;
    Value* b = nullptr;
  };

  void emit_callees() override { m_epilogue.function(); }
  void emit(const TileShape& shape, const GemmTileCall& call) override;
  void sum_in_blocks(const TileShape& shape, const GemmTileCall& call);
  void for_rows(const TileShape& shape, const std::function<void(Value* first, int64_t rows)>& body);
  Sums sum_vectors(const TileShape& shape, Operands at, Value* vectors, const Sums& sums);
  Sums step(const TileShape& shape, const Operands& at, int64_t elements, const Sums& sums);
  void fold(const Sums& sums, int64_t rows, const GemmTileCall& call, Value* first_row);

  /// Elements of a vector.
  int64_t elements() const { return m_g.sum_lanes() * m_g.k_group(); }
  bool holds_all() const { return m_schedule.tile_rows <= m_schedule.register_rows; }
  /// Scratch: a vector for each row, which the epilogue reads, and behind them the sums.
  int64_t folded_bytes() const { return m_schedule.tile_rows * m_g.sum_vector_bytes(); }
  int64_t tile_sums() const { return int64_t{m_schedule.tile_rows} * m_schedule.tile_columns; }
  Value* moved(Value* base, const GemmOperand& operand, Value* count) {
    return m_g.e.advance(base, m_g.e.ir.CreateMul(count, m_g.e.index(operand.element_bytes())));
  }

  const DotSchedule& m_schedule;
  GemmEpilogue m_epilogue;
};

void DotKernel::emit(const TileShape& shape, const GemmTileCall& call) {
  Emitter& e = m_g.e;
  const int64_t k = m_g.problem.gemm->k, whole = k / elements() * elements();
  if (holds_all()) {
    const Operands begin{call.a, call.b};
    Sums sums(static_cast<size_t>(shape.rows * shape.vectors), m_g.zero());
    sums = sum_vectors(shape, begin, e.index(k / elements()), sums);
    if (whole < k) {
      const Operands rest{moved(begin.a, m_g.problem.a, e.index(whole)), moved(begin.b, m_g.problem.b, e.index(whole))};
      sums = step(shape, rest, k - whole, sums);
    }
    fold(sums, shape.rows, call, e.index(0));
  } else {
    sum_in_blocks(shape, call);
  }
  m_epilogue.run(call, m_g.e.index(shape.rows), m_g.e.index(shape.vectors));
}

/// For each block of k, for each group of rows: sums from scratch to registers and back.
void DotKernel::sum_in_blocks(const TileShape& shape, const GemmTileCall& call) {
  Emitter& e = m_g.e;
  const int64_t k = m_g.problem.gemm->k, whole = k / elements() * elements(), bytes = m_g.sum_vector_bytes();
  const auto alignment = static_cast<uint64_t>(bytes);
  Value* waiting = e.advance(call.scratch, folded_bytes());
  const auto sum_at = [&](Value* first, size_t i) {
    return e.advance(e.advance(waiting, e.ir.CreateMul(first, e.index(shape.vectors * bytes))),
                     static_cast<int64_t>(i) * bytes);
  };
  const auto load = [&](Value* first, int64_t rows) {
    Sums sums;
    for (size_t i = 0; i < static_cast<size_t>(rows * shape.vectors); ++i) {
      sums.push_back(e.load(m_g.sum_vector(), sum_at(first, i), alignment));
    }
    return sums;
  };
  const auto store = [&](Value* first, const Sums& sums) {
    for (size_t i = 0; i < sums.size(); ++i) e.store(sums[i], sum_at(first, i), alignment);
  };
  const auto operands = [&](Value* first, Value* from) {
    const int64_t row_bytes = m_g.problem.a.tile_stride * m_g.problem.a.element_bytes();
    Value* row = e.advance(call.a, e.ir.CreateMul(first, e.index(row_bytes)));
    return Operands{moved(row, m_g.problem.a, from), moved(call.b, m_g.problem.b, from)};
  };
  for_rows(shape, [&](Value* first, int64_t rows) {
    store(first, Sums(static_cast<size_t>(rows * shape.vectors), m_g.zero()));
  });
  e.loop(e.index(0), e.index(whole), m_schedule.k_block, [&](Value* from) {
    Value* rest = e.ir.CreateSub(e.index(whole), from);
    Value* count = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, rest, e.index(m_schedule.k_block));
    Value* vectors = e.ir.CreateUDiv(count, e.index(elements()));
    for_rows(shape, [&](Value* first, int64_t rows) {
      store(first, sum_vectors({rows, shape.vectors}, operands(first, from), vectors, load(first, rows)));
    });
  });
  for_rows(shape, [&](Value* first, int64_t rows) {
    Sums sums = load(first, rows);
    if (whole < k) sums = step({rows, shape.vectors}, operands(first, e.index(whole)), k - whole, sums);
    fold(sums, rows, call, first);
  });
}

/// Calls `body` for the rows of a tile, as many at a time as registers hold.
void DotKernel::for_rows(const TileShape& shape, const std::function<void(Value* first, int64_t rows)>& body) {
  Emitter& e = m_g.e;
  Split::of(shape.rows, m_schedule.register_rows).for_each_size([&](int64_t from, int64_t to, int64_t rows) {
    e.loop(e.index(from), e.index(to), rows, [&](Value* first) { body(first, rows); });
  });
}

DotKernel::Sums DotKernel::sum_vectors(const TileShape& shape, Operands at, Value* vectors, const Sums& sums) {
  Emitter& e = m_g.e;
  Values carried{at.a, at.b};
  carried.insert(carried.end(), sums.begin(), sums.end());
  carried = e.loop(e.index(0), vectors, 1, carried, [&](Value*, const Values& now) {
    const Sums more = step(shape, {now[0], now[1]}, elements(), {now.begin() + 2, now.end()});
    Values next{e.advance(now[0], elements() * m_g.problem.a.element_bytes()),
                e.advance(now[1], elements() * m_g.problem.b.element_bytes())};
    next.insert(next.end(), more.begin(), more.end());
    return next;
  });
  return {carried.begin() + 2, carried.end()};
}

/// Adds the products of `count` elements along k, at most a vector of them.
DotKernel::Sums DotKernel::step(const TileShape& shape, const Operands& at, int64_t count, const Sums& sums) {
  Emitter& e = m_g.e;
  const auto load = [&](const GemmOperand& operand, Value* base, int64_t i) {
    Value* line = e.advance(base, i * operand.tile_stride * operand.element_bytes());
    return m_g.load_elements(operand, line, m_g.mask(count, elements()));
  };
  Values rows;
  for (int64_t row = 0; row < shape.rows; ++row) rows.push_back(load(m_g.problem.a, at.a, row));
  Sums next;
  for (int64_t column = 0; column < shape.vectors; ++column) {
    Value* vector = load(m_g.problem.b, at.b, column);
    for (int64_t row = 0; row < shape.rows; ++row) {
      next.push_back(m_g.multiply_add(rows[row], vector, sums[column * shape.rows + row]));
    }
  }
  return next;
}

/// Of each row one vector, whose lanes are the sums of its columns.
void DotKernel::fold(const Sums& sums, int64_t rows, const GemmTileCall& call, Value* first_row) {
  Emitter& e = m_g.e;
  const int64_t bytes = m_g.sum_vector_bytes();
  Value* first = e.advance(call.scratch, e.ir.CreateMul(first_row, e.index(bytes)));
  for (int64_t row = 0; row < rows; ++row) {
    Values of_row;
    for (size_t i = static_cast<size_t>(row); i < sums.size(); i += static_cast<size_t>(rows))
      of_row.push_back(sums[i]);
    e.store(e.sum_of_each(of_row), e.advance(first, row * bytes), static_cast<uint64_t>(bytes));
  }
}

}  // namespace

Status fits_dot(const GemmProblem& problem) {
  for (const GemmOperand* operand : {&problem.a, &problem.b}) {
    if (operand->plain == nullptr || operand->k_stride != 1) {
      return error(StatusCode::unimplemented, "gemm by dot products: an operand is not contiguous along k");
    }
  }
  if (problem.types.accumulator == DType::i64) {  // products of i64 cost more than packing
    return error(StatusCode::unimplemented, "gemm by dot products: sums of {}", to_string(problem.types.accumulator));
  }
  return {};
}

namespace {

DotSchedule dot_schedule(const GemmProblem& problem, const Machine& machine, int64_t most_rows) {
  const auto& gemm = *problem.gemm;
  const bool wide = problem.registers == 32;
  DotSchedule schedule;
  schedule.tile_columns = static_cast<uint16_t>(std::min({gemm.n, problem.sum_lanes(), int64_t{wide ? 8 : 4}}));
  schedule.register_rows = static_cast<uint16_t>(std::min<int64_t>(gemm.m, wide ? 3 : 2));
  schedule.tile_rows = static_cast<uint16_t>(std::max<int64_t>(schedule.register_rows, std::min(gemm.m, most_rows)));
  const int64_t column_bytes = std::max<int64_t>(gemm.k, 1) * problem.b.element_bytes();
  const int64_t vector = problem.sum_lanes() * problem.k_group();
  const int64_t fitting = k_block_bytes / (schedule.tile_columns * problem.b.element_bytes());
  schedule.k_block = static_cast<uint32_t>(std::max(fitting / vector, int64_t{1}) * vector);
  const int64_t slab = k_slab_bytes / column_bytes / schedule.tile_columns;
  schedule.slab_columns = static_cast<uint32_t>(std::max<int64_t>(slab, 1) * schedule.tile_columns);
  const GemmBlocking settled = with_parts(schedule.blocking(problem), problem, machine);
  schedule.slab_columns = static_cast<uint32_t>(settled.slab_units);
  schedule.row_parts = static_cast<uint32_t>(settled.row_parts);
  return schedule;
}

}  // namespace

std::vector<DotSchedule> ranked_dot_schedules(const GemmProblem& problem, const Machine& machine) {
  const DotSchedule held = dot_schedule(problem, machine, 1), blocked = dot_schedule(problem, machine, k_most_rows);
  if (blocked == held) return {held};
  const int64_t column_bytes = problem.gemm->k * problem.b.element_bytes();
  if (held.tile_columns * column_bytes <= k_held_bytes) return {held, blocked};
  return {blocked, held};
}

Status DotSchedule::validate(const GemmProblem& problem) const {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("gemm by dot products, {}: {}", describe(problem), why);
  };
  if (!fits_dot(problem).ok()) return refuse(fits_dot(problem).message());
  if (tile_rows == 0 || tile_columns == 0 || register_rows == 0 || k_block == 0 || slab_columns == 0 ||
      row_parts == 0) {
    return refuse("a zero extent");
  }
  if (tile_rows > k_largest_tile) return refuse("the tile has too many rows");
  if (k_block % (problem.sum_lanes() * problem.k_group()) != 0) return refuse("a block of k is no number of vectors");
  if (tile_columns > problem.sum_lanes()) return refuse("a row of the tile is more than a vector");
  // The sums, a vector of each row of A, and one of B.
  const int64_t rows = std::min(tile_rows, register_rows);
  if (rows * tile_columns + rows + 1 > problem.registers) {
    return refuse("the tile needs more registers");
  }
  return {};
}

GemmBlocking DotSchedule::blocking(const GemmProblem& problem) const {
  return {.unit = 1,
          .tile_rows = tile_rows,
          .tile_units = tile_columns,
          .k_block = std::max<int64_t>(problem.steps(), 1),
          .slab_units = slab_columns,
          .row_parts = row_parts};
}

std::string DotSchedule::describe(const GemmProblem& problem) const {
  const std::string groups = tile_rows > register_rows ? fmt::format(" by {}", register_rows) : "";
  const int64_t block = tile_rows > register_rows ? int64_t{k_block} : problem.gemm->k;
  return fmt::format("dot {}x{}{} k {} slab {} parts {} rolled{}{}", tile_rows, tile_columns, groups, block,
                     slab_columns, row_parts, exchanged ? " exchanged" : "", how_multiplied(problem.types.step));
}

namespace {

template <typename Choices>
Status claims(const KernelSpec& spec, const CpuTarget& target) {
  KILN_RETURN_IF_ERROR(gemm_bodies_claims(spec));
  KILN_RETURN_IF_ERROR(whole_products_claims(spec));
  KILN_ASSIGN_OR_RETURN(const GemmTypes types, Choices::types(spec, target));
  return fits_dot(analyse_gemm(spec, target, types));
}

template <typename Choices>
std::vector<Schedule> schedules(const KernelSpec& spec, const CpuTarget& target, const Machine& machine) {
  if (std::is_same_v<Choices, DotSchedule> && multiplies_pairs_in_memory(spec, target)) return {};
  return schedules_of<Choices>(spec, target, [&](const GemmProblem& problem) {
    const DType element = problem.types.element;
    const bool has_tiles = (element == DType::bf16 && target.has(Feature::amx_bf16)) ||
                           (element == DType::i8 && target.has(Feature::amx_int8));
    const int64_t most_rows = has_tiles ? k_most_rows_beside_tiles : k_most_rows;
    // To widen what is cast costs less than to make pairs of it.
    const bool makes_pairs = problem.k_group() > 1 && !problem.lies_as_element();
    const bool is_worth_it = problem.gemm->k >= problem.sum_lanes() && problem.gemm->m <= most_rows;
    return is_worth_it && !makes_pairs ? ranked_dot_schedules(problem, machine) : std::vector<DotSchedule>();
  });
}

template <typename Choices>
constexpr Implementation k_row{Choices::k_implementation, claims<Choices>, schedules<Choices>,
                               emit_tiles<Choices, DotKernel>};

}  // namespace

Implementation dot_implementation() { return k_row<DotSchedule>; }
Implementation bf16_dot_implementation() { return k_row<Bf16DotSchedule>; }
Implementation i16_dot_implementation() { return k_row<I16DotSchedule>; }

}  // namespace kiln::cpu
