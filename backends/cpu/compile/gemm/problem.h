#pragma once

#include <cstdint>
#include <optional>

#include "backends/cpu/features.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::cpu {

/// The dtypes of a product, on one way to make it.
struct GemmTypes {
  DType element = DType::f32;      // of the operands' values
  DType multiply = DType::f32;     // what the multiply instruction takes, so what packed operands hold
  DType accumulator = DType::f32;  // of sums
  int64_t k_group = 1;             // steps of k that one multiply instruction takes
};

/// Operands are converted to the accumulator's dtype, then multiplied one step of k at a time.
GemmTypes widened(const GemmSpec& gemm);

/// How one operand of a gemm can be read. Its "tile dim" is m for A and n for B.
struct GemmOperand {
  const Body* body = nullptr;
  ExprId value = k_no_expr;
  /// The load, when the operand is nothing but one load of the type that is multiplied: its elements can be used where
  /// they lie.
  const Access* plain = nullptr;
  int64_t tile_stride = 0, k_stride = 0;  // of the plain load, in elements
  /// Vectors along k are better than vectors along the tile dim: more of the loads are contiguous that way.
  bool k_lanes = false;
};

/// A gemm spec as the generator sees it: derived facts, no choices. Borrows the spec.
struct GemmProblem {
  const KernelSpec* spec = nullptr;
  const GemmSpec* gemm = nullptr;
  const CpuTarget* target = nullptr;
  GemmTypes types;
  int registers = 32;  // vector registers of the target
  int64_t batches = 1;
  GemmOperand a, b;
  /// A store whose memory may hold partial sums between two blocks of k: written once, of the accumulator's type, along n
  /// contiguous, and not read by the epilogue. Without one, partial sums lie in the workspace.
  const Access* partial_sums = nullptr;

  /// Of an operand's element as it is multiplied: packed, or where a plain operand lies.
  int64_t packed_bytes() const { return static_cast<int64_t>(size_of(types.multiply)); }
  int64_t sum_bytes() const { return static_cast<int64_t>(size_of(types.accumulator)); }
  /// Sums that a vector holds.
  int64_t sum_lanes() const { return target->vector_bytes / sum_bytes(); }
  int64_t k_group() const { return types.k_group; }
  /// A vector of sums.
  int64_t sum_vector_bytes() const { return sum_lanes() * sum_bytes(); }
  /// What is multiplied into a vector of sums at once, of the operand whose tile dim the lanes run along.
  int64_t packed_vector_bytes() const { return sum_lanes() * k_group() * packed_bytes(); }
};

GemmProblem analyse_gemm(const KernelSpec& spec, const CpuTarget& target, const GemmTypes& types);

/// The same numbers computed as C^T = B^T A^T: m and n, A and B exchange their roles. Vectors then run along what was
/// m: better when n is small or the output lies m-contiguous.
KernelSpec exchanged(const KernelSpec& spec);

/// The spec in the form that is compiled, `exchanged` or as it is.
KernelSpec oriented(const KernelSpec& spec, bool is_exchanged);

/// Whether the model takes `exchanged` for the better form of the problem.
bool prefers_exchange(const GemmProblem& problem);

}  // namespace kiln::cpu
