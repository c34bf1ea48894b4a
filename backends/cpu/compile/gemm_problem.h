#pragma once

#include <cstdint>
#include <optional>

#include "backends/cpu/features.h"
#include "frontend/fuse/kernel_spec.h"

namespace kiln::cpu {

/// How one operand of a gemm can be read. Its "tile dim" is m for A and n for B.
struct GemmOperand {
  const Body* body = nullptr;
  ExprId value = k_no_expr;
  /// The load, when the operand is nothing but one load of the compute type: its elements can be used where they lie.
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
  DType compute = DType::f32;  // of products and sums: accumulator_of(gemm->dtype)
  int64_t element_bytes = 4;   // of `compute`
  int64_t lanes = 16;          // of a vector of `compute`
  int registers = 32;          // vector registers of the target
  int64_t batches = 1;
  GemmOperand a, b;
  /// A store whose memory may hold partial sums between two blocks of k: written once, of the compute type, along n
  /// contiguous, and not read by the epilogue. Without one, partial sums lie in the workspace.
  const Access* partial_sums = nullptr;
};

GemmProblem analyse_gemm(const KernelSpec& spec, const CpuTarget& target);

/// The same numbers computed as C^T = B^T A^T: m and n, A and B exchange their roles. Vectors then run along what was
/// m: better when n is small or the output lies m-contiguous.
KernelSpec exchanged(const KernelSpec& spec);

/// Whether `exchanged` is the better form to compile.
bool prefers_exchange(const KernelSpec& spec, const CpuTarget& target);

}  // namespace kiln::cpu
