#include "backends/cpu/compile/gemm/dot.h"

#include <algorithm>

#include "backends/cpu/compile/gemm/epilogue.h"
#include "backends/cpu/compile/gemm/implementations.h"
#include "backends/schedule_bytes.h"

/// The dot product: both operands are contiguous along k. Lanes run along k, every sum is a vector, and at the end the
/// vectors of one row of the tile are folded into one. For few rows this saves the transposed packing of B, which could not be repaid.
///
/// The epilogue is always rolled, over one vector for each row of the tile.
namespace kiln::cpu {
namespace {

using llvm::Value;

constexpr int64_t k_slab_bytes = 128 << 10;
constexpr int64_t k_most_rows = 32;              // more repay packing
constexpr int64_t k_most_rows_beside_tiles = 4;  // of bf16, where AMX multiplies 16 rows in the time of one

class DotKernel final : public GemmTileKernel {
 public:
  DotKernel(GemmEmission& emission, const DotSchedule& schedule)
      : GemmTileKernel(emission),
        m_schedule(schedule),
        m_epilogue(emission, {.vectors = 1, .has_whole = false, .has_tail = true}) {}

  int64_t scratch_bytes() const override { return m_schedule.tile_rows * m_g.sum_vector_bytes(); }

 private:
  void emit_callees() override { m_epilogue.function(); }
  void emit(const TileShape& shape, const GemmTileCall& call) override;

  const DotSchedule& m_schedule;
  GemmEpilogue m_epilogue;
};

void DotKernel::emit(const TileShape& shape, const GemmTileCall& call) {
  Emitter& e = m_g.e;
  const GemmOperand &a_rows = m_g.problem.a, &b_columns = m_g.problem.b;
  const int64_t k = m_g.problem.gemm->k;
  const int64_t elements = m_g.sum_lanes() * m_g.k_group();  // of a vector
  const auto step = [&](Value* a, Value* b, int64_t count, const Values& sums) {
    Values rows, next;
    const auto load = [&](const GemmOperand& operand, Value* base, int64_t i) {
      Value* line = e.advance(base, i * operand.tile_stride * operand.element_bytes());
      return m_g.load_elements(operand, line, m_g.mask(count, elements));
    };
    for (int64_t row = 0; row < shape.rows; ++row) rows.push_back(load(a_rows, a, row));
    for (int64_t column = 0; column < shape.vectors; ++column) {
      Value* vector = load(b_columns, b, column);
      for (int64_t row = 0; row < shape.rows; ++row) {
        next.push_back(m_g.multiply_add(rows[row], vector, sums[column * shape.rows + row]));
      }
    }
    return next;
  };
  Values carried{call.a, call.b};
  carried.resize(static_cast<size_t>(2 + shape.rows * shape.vectors), m_g.zero());
  carried = e.loop(e.index(0), e.index(k / elements), 1, carried, [&](Value*, const Values& now) {
    const Values sums = step(now[0], now[1], elements, {now.begin() + 2, now.end()});
    Values next{e.advance(now[0], elements * a_rows.element_bytes()),
                e.advance(now[1], elements * b_columns.element_bytes())};
    next.insert(next.end(), sums.begin(), sums.end());
    return next;
  });
  Values sums(carried.begin() + 2, carried.end());
  if (k % elements != 0) sums = step(carried[0], carried[1], k % elements, sums);

  for (int64_t row = 0; row < shape.rows; ++row) {
    Values of_row;
    for (int64_t column = 0; column < shape.vectors; ++column) of_row.push_back(sums[column * shape.rows + row]);
    e.store(e.sum_of_each(of_row), e.advance(call.scratch, row * m_g.sum_vector_bytes()),
            static_cast<uint64_t>(m_g.sum_vector_bytes()));
  }
  m_epilogue.run(call, shape.rows, shape.vectors);
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

DotSchedule dot_schedule(const GemmProblem& problem) {
  const auto& gemm = *problem.gemm;
  const bool wide = problem.registers == 32;
  DotSchedule schedule;
  schedule.tile_rows = static_cast<uint16_t>(std::min<int64_t>(gemm.m, wide ? 3 : 2));
  schedule.tile_columns = static_cast<uint16_t>(std::min({gemm.n, problem.sum_lanes(), int64_t{wide ? 8 : 4}}));
  const int64_t column_bytes = std::max<int64_t>(gemm.k, 1) * problem.b.element_bytes();
  const int64_t slab = k_slab_bytes / column_bytes / schedule.tile_columns;
  schedule.slab_columns = static_cast<uint32_t>(std::max<int64_t>(slab, 1) * schedule.tile_columns);
  const GemmBlocking settled = with_parts(schedule.blocking(problem), problem);
  schedule.slab_columns = static_cast<uint32_t>(settled.slab_units);
  schedule.row_parts = static_cast<uint32_t>(settled.row_parts);
  return schedule;
}

Status DotSchedule::validate(const GemmProblem& problem) const {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("gemm by dot products, {}: {}", describe(problem), why);
  };
  if (!fits_dot(problem).ok()) return refuse(fits_dot(problem).message());
  if (tile_rows == 0 || tile_columns == 0 || slab_columns == 0 || row_parts == 0) return refuse("a zero extent");
  if (tile_columns > problem.sum_lanes()) return refuse("a row of the tile is more than a vector");
  // The sums, a vector of each row of A, and one of B.
  if (int64_t{tile_rows} * tile_columns + tile_rows + 1 > problem.registers) {
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
  return fmt::format("dot {}x{} k {} slab {} parts {} rolled{}{}", tile_rows, tile_columns, problem.gemm->k,
                     slab_columns, row_parts, exchanged ? " exchanged" : "", how_multiplied(problem.types.step));
}

namespace {

template <typename Choices>
Status claims(const KernelSpec& spec, const CpuTarget& target) {
  KILN_RETURN_IF_ERROR(gemm_bodies_claims(spec));
  KILN_ASSIGN_OR_RETURN(const GemmTypes types, Choices::types(spec, target));
  return fits_dot(analyse_gemm(spec, target, types));
}

template <typename Choices>
std::vector<Schedule> schedules(const KernelSpec& spec, const CpuTarget& target, const Machine&) {
  return schedules_of<Choices>(spec, target, [&](const GemmProblem& problem) {
    const bool has_tiles = target.has(Feature::amx_bf16) && problem.types.element == DType::bf16;
    const int64_t most_rows = has_tiles ? k_most_rows_beside_tiles : k_most_rows;
    // To widen what is cast costs less than to make pairs of it.
    const bool makes_pairs = problem.k_group() > 1 && !(problem.a.casts.empty() && problem.b.casts.empty());
    const bool is_worth_it = problem.gemm->k >= problem.sum_lanes() && problem.gemm->m <= most_rows;
    return is_worth_it && !makes_pairs ? std::vector{dot_schedule(problem)} : std::vector<DotSchedule>();
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
