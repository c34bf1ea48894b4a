#include "backends/cpu/compile/attention/tile_products.h"

#include "backends/cpu/compile/emit/split.h"

/// Scores are keys times queries: rows of keys as they lie, and the transposed queries, whose steps are pairs along the depth.
/// The output's rows are along the depth of the values: they are transposed, by pairs of keys, for each block of keys.
namespace kiln::cpu {

using llvm::Value;

void RegisterTileProducts::plan_workspace() {
  m_saved = m_a.take(TileRegisters::k_configuration_bytes);
  m_row_pairs = m_a.take(int64_t{m_a.schedule.key_block} / 2 * value_columns() * 4);
  m_columns = m_a.take(value_columns() * column_bytes());
}

void RegisterTileProducts::enter() {
  std::array<int64_t, TileRegisters::k_count> whole{};
  whole.fill(TileRegisters::k_rows);
  m_registers.save_configuration(m_a.at(m_saved));
  m_registers.configure(m_registers.shapes(whole));
}

void RegisterTileProducts::leave() { m_registers.configure(m_a.at(m_saved)); }

/// C's columns are two vectors of a block of queries, as are B's.
void RegisterTileProducts::multiply(int64_t height, Value* a, int64_t a_row_bytes, Value* b, Value* c, Value* steps,
                                    bool accumulates) {
  constexpr int64_t k_a = k_wide * k_wide, k_b = k_a + k_wide, k_rows = TileRegisters::k_rows;
  const auto each = [&](const auto& visit) {
    for (int64_t row = 0; row < height; ++row) {
      for (int64_t v = 0; v < k_wide; ++v) {
        visit(row * k_wide + v, e.advance(c, row * k_rows * m_a.block_bytes() + v * m_a.vector_bytes()));
      }
    }
  };
  each([&](int64_t tile, Value* at) {
    accumulates ? m_registers.load(tile, at, m_a.block_bytes()) : m_registers.zero(tile);
  });
  e.loop(e.index(0), steps, k_rows, {a, b}, [&](Value*, const Values& at) {
    for (int64_t row = 0; row < height; ++row) {
      m_registers.load(k_a + row, e.advance(at[0], row * k_rows * a_row_bytes), a_row_bytes);
    }
    for (int64_t v = 0; v < k_wide; ++v) {
      m_registers.load(k_b + v, e.advance(at[1], v * m_a.vector_bytes()), m_a.block_bytes());
      for (int64_t row = 0; row < height; ++row) {
        m_registers.multiply(llvm::Intrinsic::x86_tdpbf16ps, row * k_wide + v, k_a + row, k_b + v);
      }
    }
    return Values{e.advance(at[0], TileRegisters::k_row_bytes), e.advance(at[1], k_rows * m_a.block_bytes())};
  });
  each([&](int64_t tile, Value* at) { m_registers.store(tile, at, m_a.block_bytes()); });
}

void RegisterTileProducts::score_tiles(const AttentionEmission::Operand& keys, Value* queries, Value* scores,
                                       Value* count) {
  Value* steps = e.index(m_a.transposed_steps(m_a.attention.head_dim));
  e.loop(e.index(0), count, k_wide * TileRegisters::k_rows, [&](Value* row) {
    Value* a = e.advance(keys.base, e.ir.CreateMul(row, e.index(keys.row_bytes)));
    Value* c = e.advance(scores, e.ir.CreateMul(row, e.index(m_a.block_bytes())));
    e.loop(e.index(0), e.index(m_a.block_bytes()), k_wide * m_a.vector_bytes(), [&](Value* offset) {
      multiply(k_wide, a, keys.row_bytes, e.advance(queries, offset), e.advance(c, offset), steps, false);
    });
  });
}

void RegisterTileProducts::load_columns(Value* values, Value* first, Value* count, Value* steps) {
  const Access& access = m_a.attention.v;
  const RowsLayout layout = m_a.layout(access, m_a.attention.value_dim);
  Value* from = e.advance(values, e.ir.CreateMul(first, e.index(m_a.row_bytes(access))));
  m_a.rows.load_row_pairs(layout, from, m_a.at(m_row_pairs), count);
  e.loop(m_a.steps(count), steps, 1, [&](Value* step) {
    Value* row = e.advance(m_a.at(m_row_pairs), e.ir.CreateMul(step, e.index(value_columns() * 4)));
    m_a.fill(row, value_columns() * 4, 0);
  });
  m_a.rows.transpose(m_a.at(m_row_pairs), value_columns() * 4, m_a.at(m_columns), column_bytes(),
                     int64_t{m_a.schedule.key_block} / 2, value_columns());
}

void RegisterTileProducts::weighted_sum(Value* values, Value* first, Value* count, Value* weights, Value* out,
                                        Value* factor) {
  Value* steps = m_a.steps(m_a.round_to_tile(count));
  load_columns(values, first, count, steps);
  e.loop(e.index(0), e.index(value_columns()), 1, [&](Value* d) {
    Value* row = e.advance(out, e.ir.CreateMul(d, e.index(m_a.block_bytes())));
    for (int64_t v = 0; v < m_a.vectors(); ++v) {
      m_a.store(e.ir.CreateFMul(m_a.load(row, v), m_a.load(factor, v)), row, v);
    }
  });
  const Split tiles = Split::of(value_columns() / TileRegisters::k_rows, k_wide);
  tiles.for_each_size([&](int64_t from, int64_t to, int64_t height) {
    e.loop(e.index(from), e.index(to), height, [&](Value* tile) {
      Value* d = e.ir.CreateMul(tile, e.index(TileRegisters::k_rows));
      Value* a = e.advance(m_a.at(m_columns), e.ir.CreateMul(d, e.index(column_bytes())));
      Value* c = e.advance(out, e.ir.CreateMul(d, e.index(m_a.block_bytes())));
      e.loop(e.index(0), e.index(m_a.block_bytes()), k_wide * m_a.vector_bytes(), [&](Value* offset) {
        multiply(height, a, column_bytes(), e.advance(weights, offset), e.advance(c, offset), steps, true);
      });
    });
  });
}

}  // namespace kiln::cpu
