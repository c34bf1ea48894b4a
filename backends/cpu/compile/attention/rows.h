#pragma once

#include <map>
#include <tuple>

#include "backends/cpu/compile/emit/scalar_emitter.h"

namespace kiln::cpu {

/// Rows of a tensor: `columns` elements of `dtype` each.
struct RowsLayout {
  DType dtype = DType::f32;
  int64_t columns = 0, column_stride = 1;  // the stride in elements
  llvm::Value* row_bytes = nullptr;        // from one row to the next, in the function that moves are called from

  /// What the code of a move depends on.
  auto kind() const { return std::tuple(dtype, columns, column_stride); }
};

/// Moves rows between tensors of any dtype and strides and row-major f32 blocks of the workspace, whose rows are
/// padded_bytes(columns) apart. One function per kind of layout.
class RowMover {
 public:
  RowMover(Emitter& emitter, ScalarEmitter& scalars) : e(emitter), m_scalars(scalars) {}

  int64_t padded(int64_t columns) const { return (columns + e.lanes() - 1) / e.lanes() * e.lanes(); }
  int64_t padded_bytes(int64_t columns) const { return padded(columns) * 4; }
  /// Bytes from one row to the next of blocks that hold the 16 bits of each element, two neighbours a lane.
  int64_t halves_bytes(int64_t columns) const { return padded_bytes((columns + 1) / 2); }

  /// block[row, :] = tensor[min(row, last), :] * scale for `count` rows; pad columns become 0.
  void load(const RowsLayout& layout, llvm::Value* tensor, llvm::Value* block, llvm::Value* count, llvm::Value* last,
            double scale);
  /// tensor[row, :] = block[row, :] * scale for `count` rows.
  void store(const RowsLayout& layout, llvm::Value* block, llvm::Value* tensor, llvm::Value* count, double scale);
  /// The same of elements of 16 bits as they are: rows of the block are halves_bytes apart.
  void load_halves(const RowsLayout& layout, llvm::Value* tensor, llvm::Value* block, llvm::Value* count,
                   llvm::Value* last);
  /// block[i, column] = the 16 bits of tensor[2i, column], and above them those of tensor[2i + 1, column], for the first
  /// `count` rows of the tensor and zeros behind them; rows of the block are padded_bytes apart.
  void load_row_pairs(const RowsLayout& layout, llvm::Value* tensor, llvm::Value* block, llvm::Value* count);
  /// to[column, row] = from[row, column]: `rows` x `columns`, multiples of lanes(); row strides in bytes.
  void transpose(llvm::Value* from, int64_t from_row_bytes, llvm::Value* to, int64_t to_row_bytes, int64_t rows,
                 int64_t columns);

 private:
  enum class Move : uint8_t { load, store, load_halves };
  llvm::Function* mover(const RowsLayout& layout, double scale, Move move);
  llvm::Function* pair_loader(const RowsLayout& layout);
  llvm::Function* transpose_block(int64_t from_row_bytes, int64_t to_row_bytes);

  Emitter& e;
  ScalarEmitter& m_scalars;
  using Kind = decltype(RowsLayout().kind());
  std::map<std::tuple<Kind, double, Move>, llvm::Function*> m_movers;
  std::map<Kind, llvm::Function*> m_pair_loaders;
  std::map<std::pair<int64_t, int64_t>, llvm::Function*> m_transposes;
};

}  // namespace kiln::cpu
