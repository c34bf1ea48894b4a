#pragma once

#include <map>

#include "backends/cpu/compile/gemm_emission.h"

namespace kiln::cpu {

class GemmBody;
struct Scope;

/// The functions that compute one tile of C. Written on first use, one per tile shape.
///
/// run() writes a call. It computes k_count steps for the tile at (m, n), starting from zero when `first`, else from
/// the partial sums, and ends in the epilogue's stores when `last`, else in the partial sums.
class GemmKernels {
 public:
  /// How a kernel steps through a packed or unpacked operand, in bytes.
  struct Steps {
    int64_t a_row = 0, a_k = 0, b_k = 0;
  };
  struct Call {
    GemmPlace place;
    llvm::Value* scratch = nullptr;  // a tile, for totals of runs and the rolled epilogue
    llvm::Value* a = nullptr;
    llvm::Value* b = nullptr;
    llvm::Value* partial = nullptr;
    llvm::Value* k_count = nullptr;
    llvm::Value* flags = nullptr;  // k_first | k_last
    llvm::Value* m = nullptr;
    llvm::Value* n = nullptr;
  };
  static constexpr int64_t k_first = 1, k_last = 2;

  GemmKernels(GemmEmission& emission, int64_t partial_row_bytes)
      : m_g(emission), m_partial_row_bytes(partial_row_bytes) {}

  void run(const TileShape& shape, const Call& call);
  /// Bytes of Call::scratch.
  int64_t scratch_bytes() const;

 private:
  using Sums = Values;  // row by row
  struct Operands {
    llvm::Value* a = nullptr;
    llvm::Value* b = nullptr;
  };
  static constexpr int64_t k_longest_run = 256;  // k steps

  llvm::Function* begin(const std::string& name, Call& call);
  llvm::Function* tile_function(const TileShape& shape);
  void emit_outer_product(const TileShape& shape, const Call& call);
  void emit_dot(const TileShape& shape, const Call& call);
  Steps steps(const TileShape& shape) const;
  Sums multiply(const TileShape& shape, const Call& call);
  Sums sum_run(const TileShape& shape, Operands& at, llvm::Value* count);
  bool has_runs() const;
  int64_t run_steps() const;
  Sums step(const TileShape& shape, const Steps& steps, llvm::Value* a, llvm::Value* b, int64_t at, const Sums& sums);
  llvm::Value* reduce_rows(const Values& sums);
  void prefetch_output(const TileShape& shape, const Call& call);
  void finish(const TileShape& shape, const Call& call, const Sums& sums);
  void store_results(const TileShape& shape, const Call& call, const Sums& sums);
  llvm::Function* rolled_epilogue();
  void prepare_stores(GemmBody& body, Scope& columns);
  void emit_stores(GemmBody& body, Scope& scope, llvm::Value* sum);
  int64_t active(const TileShape& shape, int64_t vector) const;

  GemmEmission& m_g;
  int64_t m_partial_row_bytes;
  std::map<TileShape, llvm::Function*> m_functions;
  llvm::Function* m_rolled_epilogue = nullptr;
};

}  // namespace kiln::cpu
