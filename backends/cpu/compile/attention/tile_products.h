#pragma once

#include "backends/cpu/compile/attention/emission.h"
#include "backends/cpu/compile/emit/tile_registers.h"

namespace kiln::cpu {

/// The products of attention by AMX's registers, of pairs of bf16: 32 rows by two vectors at a time. All registers are whole,
/// so operands are padded with zeros to 16 rows and to 16 steps.
class RegisterTileProducts {
 public:
  explicit RegisterTileProducts(AttentionEmission& emission) : m_a(emission), e(emission.e), m_registers(emission.e) {}

  /// Takes what the functions below need of the workspace, where `columns` of such a tensor are summed along its keys.
  void plan_workspace(const Access& summed, int64_t columns);
  /// Around everything else in a task.
  void enter();
  void leave();

  /// scores[key, queries] = keys · queries, along `depth`, for `count` keys, and for as many more as make a whole number of
  /// tiles.
  void score_tiles(const AttentionEmission::Operand& keys, int64_t depth, llvm::Value* queries, llvm::Value* scores,
                   llvm::Value* count);
  /// out[d, queries] += Σ_key tensor[key, d] * weights[key, queries] for `count` keys from `first` on of the tensor that was
  /// named; weights from there to the end of the last tile are zeros.
  void weighted_sum(llvm::Value* tensor, llvm::Value* first, llvm::Value* count, llvm::Value* weights,
                    llvm::Value* out);
  /// out[key, d] += Σ_query weights[key, query] * rows[query, d] for `count` keys, a whole number of tiles, and `columns`; of
  /// rows two neighbours are in a lane, and those from `queries` on to the end of the block become zeros.
  void accumulate_rows(llvm::Value* weights, llvm::Value* rows, int64_t columns, llvm::Value* out, llvm::Value* count,
                       llvm::Value* queries);

 private:
  static constexpr int64_t k_wide = 2;  // registers of a tile, in both directions
  struct Tile {
    int64_t height = k_wide, width = k_wide;  // in registers
    int64_t a_row_bytes = 0, b_row_bytes = 0, c_row_bytes = 0;
    bool accumulates = false;
  };
  void multiply(const Tile& tile, llvm::Value* a, llvm::Value* b, llvm::Value* c, llvm::Value* steps);
  void load_columns(llvm::Value* tensor, llvm::Value* first, llvm::Value* count, llvm::Value* steps);
  void clear_pairs(llvm::Value* rows, int64_t columns, llvm::Value* from, llvm::Value* to);
  int64_t summed_columns() const { return m_a.rows.padded(m_columns_count); }
  int64_t column_bytes() const { return int64_t{m_a.schedule.key_block} / 2 * 4; }

  AttentionEmission& m_a;
  Emitter& e;
  TileRegisters m_registers;
  const Access* m_summed = nullptr;
  int64_t m_columns_count = 0, m_saved = 0, m_row_pairs = 0, m_columns = 0;
};

}  // namespace kiln::cpu
