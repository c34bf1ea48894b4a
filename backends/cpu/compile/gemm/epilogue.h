#pragma once

#include "backends/cpu/compile/gemm/body.h"
#include "backends/cpu/compile/gemm/tile_kernel.h"

namespace kiln::cpu {

/// The stores of a finished tile, its sums in scratch: one function that loops over it (rolled). A long expression over
/// 24 sums in registers would make the compiler interleave all of them and spill; scratch stays in the first-level cache,
/// and compiling takes half the time.
class GemmEpilogue {
 public:
  /// How the rows of a tile lie in scratch.
  struct Rows {
    int64_t vectors = 1;                     // from one row to the next
    bool has_whole = true, has_tail = true;  // vectors of which all lanes exist, and a last one with fewer
  };

  GemmEpilogue(GemmEmission& emission, const Rows& rows) : m_g(emission), m_rows(rows) {}

  llvm::Function* function();
  /// Writes a call for the tile of `call`, `rows` x `columns`.
  void run(const GemmTileCall& call, llvm::Value* rows, llvm::Value* columns);

 private:
  GemmEmission& m_g;
  Rows m_rows;
  llvm::Function* m_function = nullptr;
};

/// Evaluates what the stores need that is the same for all rows.
void prepare_stores(const GemmEmission& emission, GemmBody& body, Scope& columns);
void emit_stores(const GemmEmission& emission, GemmBody& body, Scope& scope, llvm::Value* sum);

}  // namespace kiln::cpu
