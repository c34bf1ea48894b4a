#include "backends/cpu/compile/attention/tile_products.h"

#include "backends/cpu/compile/emit/split.h"

/// Scores are keys times queries: rows of keys as they lie, and the transposed queries, whose steps are pairs along the depth.
/// The rows of a weighted sum are along the depth of its tensor, which is transposed, by pairs of keys, for each block of keys.
namespace kiln::cpu {

using llvm::Value;

void RegisterTileProducts::plan_workspace(const Access& summed, int64_t columns) {
  m_summed = &summed;
  m_columns_count = columns;
  m_saved = m_a.take(TileRegisters::k_configuration_bytes);
  m_row_pairs = m_a.take(int64_t{m_a.schedule.key_block} / 2 * summed_columns() * 4);
  m_columns = m_a.take(summed_columns() * column_bytes());
}

void RegisterTileProducts::enter() {
  std::array<int64_t, TileRegisters::k_count> whole{};
  whole.fill(TileRegisters::k_rows);
  m_registers.save_configuration(m_a.at(m_saved));
  m_registers.configure(m_registers.shapes(whole));
}

void RegisterTileProducts::leave() { m_registers.configure(m_a.at(m_saved)); }

void RegisterTileProducts::multiply(const Tile& tile, Value* a, Value* b, Value* c, Value* steps) {
  constexpr int64_t k_a = k_wide * k_wide, k_b = k_a + k_wide, k_rows = TileRegisters::k_rows;
  const auto each = [&](const auto& visit) {
    for (int64_t row = 0; row < tile.height; ++row) {
      for (int64_t v = 0; v < tile.width; ++v) {
        visit(row * k_wide + v, e.advance(c, row * k_rows * tile.c_row_bytes + v * m_a.vector_bytes()));
      }
    }
  };
  each([&](int64_t sum, Value* at) {
    tile.accumulates ? m_registers.load(sum, at, tile.c_row_bytes) : m_registers.zero(sum);
  });
  e.loop(e.index(0), steps, k_rows, {a, b}, [&](Value*, const Values& at) {
    for (int64_t row = 0; row < tile.height; ++row) {
      m_registers.load(k_a + row, e.advance(at[0], row * k_rows * tile.a_row_bytes), tile.a_row_bytes);
    }
    for (int64_t v = 0; v < tile.width; ++v) {
      m_registers.load(k_b + v, e.advance(at[1], v * m_a.vector_bytes()), tile.b_row_bytes);
      for (int64_t row = 0; row < tile.height; ++row) {
        m_registers.multiply(llvm::Intrinsic::x86_tdpbf16ps, row * k_wide + v, k_a + row, k_b + v);
      }
    }
    return Values{e.advance(at[0], TileRegisters::k_row_bytes), e.advance(at[1], k_rows * tile.b_row_bytes)};
  });
  each([&](int64_t sum, Value* at) { m_registers.store(sum, at, tile.c_row_bytes); });
}

void RegisterTileProducts::score_tiles(const AttentionEmission::Operand& keys, int64_t depth, Value* queries,
                                       Value* scores, Value* count) {
  const int64_t key_bytes = m_a.transposed_steps(depth) * 4;  // keys are in the workspace
  const Tile tile{.a_row_bytes = key_bytes, .b_row_bytes = m_a.block_bytes(), .c_row_bytes = m_a.block_bytes()};
  Value* steps = e.index(m_a.transposed_steps(depth));
  e.loop(e.index(0), count, k_wide * TileRegisters::k_rows, [&](Value* row) {
    Value* a = e.advance(keys.base, e.ir.CreateMul(row, e.index(key_bytes)));
    Value* c = e.advance(scores, e.ir.CreateMul(row, e.index(m_a.block_bytes())));
    e.loop(e.index(0), e.index(m_a.block_bytes()), k_wide * m_a.vector_bytes(),
           [&](Value* offset) { multiply(tile, a, e.advance(queries, offset), e.advance(c, offset), steps); });
  });
}

/// Of rows by pairs of keys or queries those of steps [from, to).
void RegisterTileProducts::clear_pairs(Value* rows, int64_t columns, Value* from, Value* to) {
  e.loop(from, to, 1,
         [&](Value* step) { m_a.fill(e.advance(rows, e.ir.CreateMul(step, e.index(columns * 4))), columns * 4, 0); });
}

void RegisterTileProducts::load_columns(Value* tensor, Value* first, Value* count, Value* steps) {
  const RowsLayout layout = m_a.layout(*m_summed, m_columns_count);
  Value* from = e.advance(tensor, e.ir.CreateMul(first, m_a.row_bytes(*m_summed)));
  m_a.rows.load_row_pairs(layout, from, m_a.at(m_row_pairs), count);
  clear_pairs(m_a.at(m_row_pairs), summed_columns(), m_a.steps(count), steps);
  m_a.rows.transpose(m_a.at(m_row_pairs), summed_columns() * 4, m_a.at(m_columns), column_bytes(),
                     int64_t{m_a.schedule.key_block} / 2, summed_columns());
}

void RegisterTileProducts::weighted_sum(Value* tensor, Value* first, Value* count, Value* weights, Value* out) {
  Value* steps = m_a.steps(m_a.round_to_tile(count));
  load_columns(tensor, first, count, steps);
  Tile tile{.a_row_bytes = column_bytes(),
            .b_row_bytes = m_a.block_bytes(),
            .c_row_bytes = m_a.block_bytes(),
            .accumulates = true};
  const Split tiles = Split::of(summed_columns() / TileRegisters::k_rows, k_wide);
  tiles.for_each_size([&](int64_t from, int64_t to, int64_t height) {
    tile.height = height;
    e.loop(e.index(from), e.index(to), height, [&](Value* row) {
      Value* d = e.ir.CreateMul(row, e.index(TileRegisters::k_rows));
      Value* a = e.advance(m_a.at(m_columns), e.ir.CreateMul(d, e.index(column_bytes())));
      Value* c = e.advance(out, e.ir.CreateMul(d, e.index(m_a.block_bytes())));
      e.loop(e.index(0), e.index(m_a.block_bytes()), k_wide * m_a.vector_bytes(),
             [&](Value* offset) { multiply(tile, a, e.advance(weights, offset), e.advance(c, offset), steps); });
    });
  });
}

void RegisterTileProducts::accumulate_rows(Value* weights, Value* rows, int64_t columns, Value* out, Value* count,
                                           Value* queries) {
  Value* steps = e.index(m_a.block() / 2);
  clear_pairs(rows, columns, m_a.steps(queries), steps);
  Tile tile{
      .a_row_bytes = m_a.block_bytes(), .b_row_bytes = columns * 4, .c_row_bytes = columns * 4, .accumulates = true};
  const Split tiles = Split::of(columns / e.lanes(), k_wide);
  e.loop(e.index(0), count, k_wide * TileRegisters::k_rows, [&](Value* row) {
    Value* a = e.advance(weights, e.ir.CreateMul(row, e.index(tile.a_row_bytes)));
    Value* c = e.advance(out, e.ir.CreateMul(row, e.index(tile.c_row_bytes)));
    tiles.for_each_size([&](int64_t from, int64_t to, int64_t width) {
      tile.width = width;
      e.loop(e.index(from), e.index(to), width, [&](Value* v) {
        Value* offset = e.ir.CreateMul(v, e.index(m_a.vector_bytes()));
        multiply(tile, a, e.advance(rows, offset), e.advance(c, offset), steps);
      });
    });
  });
}

}  // namespace kiln::cpu
