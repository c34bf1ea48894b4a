#pragma once

#include <vector>

#include "backends/cpu/compile/emit/emitter.h"
#include "backends/cpu/compile/gemm/problem.h"

namespace kiln::cpu {

/// How far from the start of a dim in pieces an element lies, in bytes.
llvm::Value* offset_in_pieces(Emitter& e, const Pieces& pieces, int64_t element_bytes, llvm::Value* index);

/// An index that runs along a dim in pieces, one step after another, as values that a loop carries: no divisions inside.
class PieceCounter {
 public:
  PieceCounter(Emitter& emitter, const Pieces& pieces, int64_t element_bytes)
      : e(emitter), m_pieces(pieces), m_bytes(element_bytes) {}

  Values begin(llvm::Value* index) const;
  /// In bytes.
  static llvm::Value* offset(const Values& at) { return at.front(); }
  Values next(const Values& at) const;

 private:
  Emitter& e;
  const Pieces& m_pieces;
  int64_t m_bytes;
};

/// Neighbouring elements along a dim in pieces as the lanes of a vector, worked out once for all vectors that begin at the same
/// index: runs of elements a few apart, each loaded into the lanes that it fills, or an offset for each lane.
class PieceLanes {
 public:
  /// The lanes index, index + 1, …; `mask`: which exist, null for all. `is_aligned`: index is a multiple of `lanes`.
  PieceLanes(Emitter& emitter, const Pieces& pieces, int64_t element_bytes, llvm::Value* index, int lanes,
             llvm::Value* mask, bool is_aligned);

  /// Lanes that do not exist are zero.
  llvm::Value* load(llvm::Type* vector, llvm::Value* pointer) const;

 private:
  struct Run {
    llvm::Value* offset = nullptr;  // of lane 0, in bytes, even where that lane is not of this run
    llvm::Value* mask = nullptr;    // null for all
  };
  void find_runs(llvm::Value* index, llvm::Value* mask, bool is_aligned);
  void find_offsets(llvm::Value* index, llvm::Value* mask);

  Emitter& e;
  const Pieces& m_pieces;
  int64_t m_bytes;
  int m_lanes;
  std::vector<Run> m_runs;
  llvm::Value *m_offsets = nullptr, *m_mask = nullptr;
};

}  // namespace kiln::cpu
