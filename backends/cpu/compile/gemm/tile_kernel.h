#pragma once

#include <map>

#include "backends/cpu/compile/gemm/emission.h"

namespace kiln::cpu {

/// What a tile's function is called with; inside of it, its parameters.
struct GemmTileCall {
  static constexpr int64_t k_first = 1, k_last = 2;  // bits of `flags`: which blocks of k this is

  GemmPlace place;
  llvm::Value* scratch = nullptr;  // scratch_bytes() of the kernel
  llvm::Value* a = nullptr;        // the tile's first element, as GemmBlocking reads it
  llvm::Value* b = nullptr;
  llvm::Value* partial = nullptr;  // where the tile's partial sums lie
  llvm::Value* k_count = nullptr;
  llvm::Value* flags = nullptr;
  llvm::Value* m = nullptr;  // the tile's first row and column
  llvm::Value* n = nullptr;
  llvm::Value* rows = nullptr;  // how many of an edge exist
  llvm::Value* columns = nullptr;
};

/// A function with these parameters, and a call of it.
llvm::Function* begin_tile_function(GemmEmission& emission, const std::string& name, GemmTileCall& call);
void call_tile_function(GemmEmission& emission, llvm::Function* function, const GemmTileCall& call);

/// The functions that compute one tile of C, one for each shape, written on first use: what an implementation gives the
/// loops (loops.h).
///
/// A tile's function computes k_count steps for the tile at (m, n), starting from zero when k_first, else from the
/// partial sums, and ends in the epilogue's stores when k_last, else in the partial sums.
class GemmTileKernel {
 public:
  explicit GemmTileKernel(GemmEmission& emission) : m_g(emission) {}
  virtual ~GemmTileKernel() = default;
  GemmTileKernel(const GemmTileKernel&) = delete;
  GemmTileKernel& operator=(const GemmTileKernel&) = delete;

  /// Writes a call.
  void run(const TileShape& shape, const GemmTileCall& call);
  /// Bytes of GemmTileCall::scratch.
  virtual int64_t scratch_bytes() const = 0;
  /// Writes what the entry does before its first tile and after its last one.
  virtual void enter(llvm::Value* /*scratch*/) {}
  virtual void leave(llvm::Value* /*scratch*/) {}

 protected:
  /// Whether the call is of the first or the last block of k: k_first, k_last.
  llvm::Value* is_block(const GemmTileCall& call, int64_t flag) const {
    return m_g.e.ir.CreateICmpNE(m_g.e.ir.CreateAnd(call.flags, m_g.e.index(flag)), m_g.e.index(0));
  }

  GemmEmission& m_g;

 private:
  /// Writes what tiles call, before the first of them.
  virtual void emit_callees() = 0;
  /// Writes the body of a tile's function, up to its return.
  virtual void emit(const TileShape& shape, const GemmTileCall& call) = 0;
  llvm::Function* function(const TileShape& shape);

  std::map<TileShape, llvm::Function*> m_functions;
};

}  // namespace kiln::cpu
