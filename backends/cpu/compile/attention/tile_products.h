#pragma once

#include "backends/cpu/compile/attention/emission.h"
#include "backends/cpu/compile/emit/tile_registers.h"

namespace kiln::cpu {

/// The products of attention's forward pass by AMX's registers, of pairs of bf16: 32 rows by two vectors of queries at a
/// time. All registers are whole, so operands are padded with zeros to 16 rows and to 16 steps.
class RegisterTileProducts {
 public:
  explicit RegisterTileProducts(AttentionEmission& emission) : m_a(emission), e(emission.e), m_registers(emission.e) {}

  /// Takes what the functions below need of the workspace.
  void plan_workspace();
  /// Around everything else in a task.
  void enter();
  void leave();

  /// scores[key, queries] = keys · queries for `count` keys, and for as many more as make a whole number of tiles.
  void score_tiles(const AttentionEmission::Operand& keys, llvm::Value* queries, llvm::Value* scores,
                   llvm::Value* count);
  /// out[d, queries] = factor[queries] * out[d, queries] + Σ_key values[key, d] * weights[key, queries] for `count` keys
  /// from `first` on; weights from there to the end of the last tile are zeros.
  void weighted_sum(llvm::Value* values, llvm::Value* first, llvm::Value* count, llvm::Value* weights, llvm::Value* out,
                    llvm::Value* factor);

 private:
  static constexpr int64_t k_wide = 2;  // registers of a tile, in both directions
  void multiply(int64_t height, llvm::Value* a, int64_t a_row_bytes, llvm::Value* b, llvm::Value* c, llvm::Value* steps,
                bool accumulates);
  void load_columns(llvm::Value* values, llvm::Value* first, llvm::Value* count, llvm::Value* steps);
  int64_t value_columns() const { return m_a.rows.padded(m_a.attention.value_dim); }
  int64_t column_bytes() const { return int64_t{m_a.schedule.key_block} / 2 * 4; }

  AttentionEmission& m_a;
  Emitter& e;
  TileRegisters m_registers;
  int64_t m_saved = 0, m_row_pairs = 0, m_columns = 0;
};

}  // namespace kiln::cpu
