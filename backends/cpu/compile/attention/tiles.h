#pragma once

#include <map>
#include <tuple>

#include "backends/cpu/compile/emit/emitter.h"

namespace kiln::cpu {

/// A tile of C[i, lanes] (+)= Σ_t A[i, t] * B[t, lanes], all f32: every matrix product of attention, forward and
/// backward, is this one with other strides. Strides in bytes; C is 64-byte aligned, and B unless said; A is read step by
/// step.
struct TileProduct {
  enum class Start : uint8_t {
    zero,        // C = Σ
    accumulate,  // C += Σ
    rescale,     // C = C * factor[lane] + Σ
  };
  static constexpr int64_t k_of_argument = INT64_MIN;  // one of A's strides may be an argument

  int64_t rows = 8, vectors = 2;
  int64_t a_row = 0, a_step = 0, b_step = 0, c_row = 0;
  Start start = Start::zero;
  bool pairs = false;    // a step of A, and one of each lane of B, is two neighbours along t in bf16
  double scale = 1;      // C = scale * Σ, where it starts from zero
  bool maximum = false;  // factor[lane] becomes the largest of itself and the column of C
  bool b_is_aligned = true;
  bool clamped = false;  // rows of A from `valid` on are not read: the last valid row stands for them
  auto operator<=>(const TileProduct&) const = default;
};

/// Writes the functions for tile products, one per kind, and calls of them.
class TileProducts {
 public:
  explicit TileProducts(Emitter& emitter) : e(emitter) {}

  /// `count` ≥ 0 steps; `factor`: vectors * lanes f32, or null when the kind needs none; `valid` ≥ 1 for clamped ones;
  /// `a_bytes`: the stride of A that is an argument.
  void run(const TileProduct& kind, llvm::Value* a, llvm::Value* b, llvm::Value* c, llvm::Value* count,
           llvm::Value* factor = nullptr, llvm::Value* valid = nullptr, llvm::Value* a_bytes = nullptr);

 private:
  llvm::Function* function(const TileProduct& kind);
  Values multiply(const TileProduct& kind, llvm::Function* function, const Values& sums);

  Emitter& e;
  std::map<TileProduct, llvm::Function*> m_functions;
};

/// 2^x for x ≤ 0, relative error 2e-7; exactly 0 below 2^-99, so that no denormal slows down what follows. NaN stays.
llvm::Value* softmax_exp2(Emitter& emitter, llvm::Value* x);

}  // namespace kiln::cpu
