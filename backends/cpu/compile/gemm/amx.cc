#include "backends/cpu/compile/gemm/amx.h"

#include <array>
#include <functional>

#include "backends/cpu/compile/emit/tile_registers.h"
#include "backends/cpu/compile/gemm/epilogue.h"
#include "backends/cpu/compile/gemm/implementations.h"
#include "backends/cpu/compile/gemm/packing.h"
#include "base/ceil_div.h"

/// Products by AMX's registers (emit/tile_registers.h).
///
/// One instruction adds to 16 x 16 sums the product of 16 rows of A, 16 steps each, and 16 steps of B, 16 columns each; a
/// step is two bf16 or four signed bytes. A tile of C lives in several registers while k runs; a row of registers of A stays
/// while the registers of B pass by. Packed panels of B are laid out as the instruction wants them, rows of A are where they
/// lie, or packed for the sake of the cache.
///
/// A tile's function sets the shapes of registers unless they are what was set last.
///
/// Of bf16 the instruction sums even and odd elements apart, from zero, before it adds to C: no other runs are needed.
namespace kiln::cpu {
namespace {

using llvm::Value;

constexpr int64_t k_row_bytes = TileRegisters::k_row_bytes;

class AmxKernel final : public GemmTileKernel {
 public:
  AmxKernel(GemmEmission& emission, const AmxSchedule& schedule)
      : GemmTileKernel(emission),
        m_schedule(schedule),
        m_tiles(emission.e),
        m_epilogue(emission,
                   {.vectors = schedule.tile_vectors, .has_whole = true, .has_tail = emission.grid.tail != 0}) {}

  int64_t scratch_bytes() const override { return k_sums + m_schedule.tile_rows * sums_row_bytes(); }
  void enter(Value* scratch) override;
  void leave(Value* scratch) override;

 private:
  /// Scratch: what was configured before, which of ours is, and a tile of sums.
  static constexpr int64_t k_saved = 0, k_current = TileRegisters::k_configuration_bytes, k_sums = 2 * k_current;

  /// The registers of a tile: of C row by row, then of A, then those that B passes through.
  struct Registers {
    int64_t rows = 1, columns = 1;  // of registers
    int64_t c(int64_t row, int64_t column) const { return row * columns + column; }
    int64_t a(int64_t row) const { return rows * columns + row; }
    int64_t b(int64_t column) const {
      const int64_t first = a(rows);
      return first + column % (AmxSchedule::k_registers - first);
    }
    /// Visits those of C.
    void each(const std::function<void(int64_t row, int64_t column)>& visit) const {
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) visit(row, column);
      }
    }
  };
  static Registers registers(const TileShape& shape) {
    return {ceil_div(shape.rows, AmxSchedule::k_register_rows), shape.vectors};
  }

  void emit_callees() override { m_epilogue.function(); }
  void emit(const TileShape& shape, const GemmTileCall& call) override;
  void configure(const TileShape& shape, Value* scratch);
  void begin_sums(const TileShape& shape, const GemmTileCall& call);
  void multiply(const TileShape& shape, const GemmTileCall& call);
  void prefetch_a(const TileShape& shape, Value* a);
  void end_sums(const TileShape& shape, const GemmTileCall& call);
  void store_sums(const TileShape& shape, Value* to, int64_t row_bytes);
  using Visit = std::function<void(Value* sums, Value* partial, int64_t lanes)>;
  void each_sum(const TileShape& shape, const GemmTileCall& call, const Visit& visit);
  void finish(const TileShape& shape, const GemmTileCall& call);

  int64_t sums_row_bytes() const { return m_schedule.tile_vectors * m_g.sum_vector_bytes(); }
  int64_t a_row_bytes() const {
    return m_schedule.read_a == ReadA::direct ? m_g.problem.a.tile_stride * m_g.problem.a.element_bytes()
                                              : packed_row_bytes(m_g);
  }
  /// Whether partial sums of such a tile go from registers to memory and back; of one with a short vector, by way of scratch.
  static bool is_whole(const TileShape& shape) { return shape.tail == 0; }

  /// Where a register of C lies in memory whose rows are so far apart.
  Value* place_of(Value* sums, int64_t row, int64_t column, int64_t row_bytes) {
    return m_g.e.advance(sums, row * AmxSchedule::k_register_rows * row_bytes + column * k_row_bytes);
  }

  const AmxSchedule& m_schedule;
  TileRegisters m_tiles;
  GemmEpilogue m_epilogue;
};

void AmxKernel::enter(Value* scratch) {
  Emitter& e = m_g.e;
  m_tiles.save_configuration(e.advance(scratch, k_saved));
  e.store(llvm::Constant::getNullValue(e.pointer()), e.advance(scratch, k_current), sizeof(void*));
}

void AmxKernel::leave(Value* scratch) { m_tiles.configure(m_g.e.advance(scratch, k_saved)); }

void AmxKernel::configure(const TileShape& shape, Value* scratch) {
  Emitter& e = m_g.e;
  const Registers registers = AmxKernel::registers(shape);
  std::array<int64_t, TileRegisters::k_count> shapes{};
  const auto set = [&](int64_t tile, int64_t rows) { shapes[static_cast<size_t>(tile)] = rows; };
  const auto rows_of = [&](int64_t row) {
    return std::min(AmxSchedule::k_register_rows, shape.rows - row * AmxSchedule::k_register_rows);
  };
  registers.each([&](int64_t row, int64_t column) { set(registers.c(row, column), rows_of(row)); });
  for (int64_t row = 0; row < registers.rows; ++row) set(registers.a(row), rows_of(row));
  for (int64_t column = 0; column < registers.columns; ++column) {
    set(registers.b(column), AmxSchedule::k_register_rows);
  }
  Value* mine = m_tiles.shapes(shapes);
  Value* current = e.advance(scratch, k_current);
  e.if_then(e.ir.CreateICmpNE(e.load(e.pointer(), current, sizeof(void*)), mine), [&] {
    m_tiles.configure(mine);
    e.store(mine, current, sizeof(void*));
  });
}

void AmxKernel::emit(const TileShape& shape, const GemmTileCall& call) {
  configure(shape, call.scratch);
  begin_sums(shape, call);
  multiply(shape, call);
  end_sums(shape, call);
}

void AmxKernel::begin_sums(const TileShape& shape, const GemmTileCall& call) {
  const Registers registers = AmxKernel::registers(shape);
  const auto zero = [&] {
    registers.each([&](int64_t row, int64_t column) { m_tiles.zero(registers.c(row, column)); });
    return Values{};
  };
  if (m_g.grid.blocks == 1 || !is_whole(shape)) {
    zero();
    return;
  }
  m_g.e.if_else(is_block(call, GemmTileCall::k_first), zero, [&] {
    const int64_t row_bytes = m_g.partial_row_bytes();
    registers.each([&](int64_t row, int64_t column) {
      m_tiles.load(registers.c(row, column), place_of(call.partial, row, column, row_bytes), row_bytes);
    });
    return Values{};
  });
}

void AmxKernel::multiply(const TileShape& shape, const GemmTileCall& call) {
  Emitter& e = m_g.e;
  const Registers registers = AmxKernel::registers(shape);
  const int64_t steps = m_g.problem.types.steps_at_once;
  const int64_t b_row_bytes = shape.vectors * m_g.packed_vector_bytes();
  const auto instruction =
      m_g.problem.types.step == GemmStep::bf16_pair ? llvm::Intrinsic::x86_tdpbf16ps : llvm::Intrinsic::x86_tdpbssd;
  e.loop(e.index(0), call.k_count, steps, {call.a, call.b}, [&](Value*, const Values& at) {
    for (int64_t row = 0; row < registers.rows; ++row) {
      m_tiles.load(registers.a(row), place_of(at[0], row, 0, a_row_bytes()), a_row_bytes());
    }
    if (m_schedule.prefetch_a) prefetch_a(shape, at[0]);
    for (int64_t column = 0; column < registers.columns; ++column) {
      m_tiles.load(registers.b(column), e.advance(at[1], column * m_g.packed_vector_bytes()), b_row_bytes);
      for (int64_t row = 0; row < registers.rows; ++row) {
        m_tiles.multiply(instruction, registers.c(row, column), registers.a(row), registers.b(column));
      }
    }
    return Values{e.advance(at[0], k_row_bytes), e.advance(at[1], steps * b_row_bytes)};
  });
}

/// Of the rows below those of the tile as many, at the same steps of k: as far ahead as memory is away. What lies behind the
/// last row is no fault to prefetch.
void AmxKernel::prefetch_a(const TileShape& shape, Value* a) {
  Emitter& e = m_g.e;
  constexpr int k_read = 0, k_to_second_level = 2, k_data = 1;
  for (int64_t row = shape.rows; row < 2 * shape.rows; ++row) {
    e.ir.CreateIntrinsic(llvm::Intrinsic::prefetch, {e.pointer()},
                         {e.advance(a, row * a_row_bytes()), e.ir.getInt32(k_read), e.ir.getInt32(k_to_second_level),
                          e.ir.getInt32(k_data)});
  }
}

void AmxKernel::store_sums(const TileShape& shape, Value* to, int64_t row_bytes) {
  const Registers registers = AmxKernel::registers(shape);
  registers.each([&](int64_t row, int64_t column) {
    m_tiles.store(registers.c(row, column), place_of(to, row, column, row_bytes), row_bytes);
  });
}

/// Visits the vectors of the tile: in scratch, and among the partial sums.
void AmxKernel::each_sum(const TileShape& shape, const GemmTileCall& call, const Visit& visit) {
  Emitter& e = m_g.e;
  e.loop(e.index(0), e.index(shape.rows), 1, [&](Value* row) {
    Value* sums = e.advance(e.advance(call.scratch, k_sums), e.ir.CreateMul(row, e.index(sums_row_bytes())));
    Value* partial = e.advance(call.partial, e.ir.CreateMul(row, e.index(m_g.partial_row_bytes())));
    for (int64_t vector = 0; vector < shape.vectors; ++vector) {
      const int64_t offset = vector * m_g.sum_vector_bytes();
      visit(e.advance(sums, offset), e.advance(partial, offset), m_g.columns(shape, vector));
    }
  });
}

void AmxKernel::end_sums(const TileShape& shape, const GemmTileCall& call) {
  Emitter& e = m_g.e;
  const auto store_in_scratch = [&] { store_sums(shape, e.advance(call.scratch, k_sums), sums_row_bytes()); };
  const auto load = [&](Value* from) { return e.load(m_g.sum_vector(), from); };
  if (m_g.grid.blocks == 1 || !is_whole(shape)) store_in_scratch();
  if (m_g.grid.blocks == 1) return finish(shape, call);
  if (!is_whole(shape)) {
    e.if_then(e.ir.CreateNot(is_block(call, GemmTileCall::k_first)), [&] {
      each_sum(shape, call, [&](Value* sums, Value* partial, int64_t lanes) {
        e.store(m_g.add(m_g.load_lanes(m_g.sum_vector(), partial, lanes), load(sums)), sums);
      });
    });
  }
  const auto end = [&] {
    if (is_whole(shape)) store_in_scratch();
    finish(shape, call);
    return Values{};
  };
  const auto keep = [&] {
    if (is_whole(shape)) {
      store_sums(shape, call.partial, m_g.partial_row_bytes());
    } else {
      each_sum(shape, call,
               [&](Value* sums, Value* partial, int64_t lanes) { m_g.store_lanes(load(sums), partial, lanes); });
    }
    return Values{};
  };
  e.if_else(is_block(call, GemmTileCall::k_last), end, keep);
}

void AmxKernel::finish(const TileShape& shape, const GemmTileCall& call) {
  GemmTileCall of_tile = call;
  of_tile.scratch = m_g.e.advance(call.scratch, k_sums);
  m_epilogue.run(of_tile, m_g.e.index(shape.rows), m_g.e.index(m_g.columns(shape)));
}

template <typename Choices>
Status claims(const KernelSpec& spec, const CpuTarget& target) {
  KILN_RETURN_IF_ERROR(gemm_bodies_claims(spec));
  KILN_RETURN_IF_ERROR(whole_products_claims(spec));
  return Choices::types(spec, target).status();
}

template <typename Choices>
std::vector<Schedule> schedules(const KernelSpec& spec, const CpuTarget& target, const Machine& machine) {
  return schedules_of<Choices>(spec, target,
                               [&](const GemmProblem& problem) { return ranked_amx_schedules(problem, machine); });
}

template <typename Choices>
constexpr Implementation k_row{Choices::k_implementation, claims<Choices>, schedules<Choices>,
                               emit_tiles<Choices, AmxKernel>};

}  // namespace

Implementation amx_bf16_implementation() { return k_row<AmxSchedule>; }
Implementation amx_int8_implementation() { return k_row<I8AmxSchedule>; }

}  // namespace kiln::cpu
