#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "frontend/kernel/gemm_dims.h"

namespace kiln::cuda {

/// One operand of a gemm as kernels see it: a value for each (batch, outer, k), outer being m for A and n for B.
struct GemmOperand {
  const Body* body = nullptr;
  ExprId value = k_no_expr;
  std::vector<int64_t> extents;  // of the body's iteration dims
  GemmDims outer, k;
  bool outer_is_adjacent = false;  // neighbours in memory are rather neighbours along outer, else along k
  bool has_batch = false;          // differs between batches
  /// Elements in place, adjacent along outer or k, all else in steps of 16 bytes: only the buffer's own address may be in
  /// the way of wide copies.
  bool is_copied = false;
  /// The same, and its batches lie at one stride: a tensor of three dims.
  bool is_tensor = false;
  int64_t batch_stride = 0;        // elements; where is_tensor
  const Access* access = nullptr;  // where is_copied

  /// In the order of the body's iteration dims.
  std::array<const GemmDims*, 2> rows_and_columns() const;
};

struct GemmProblem {
  const KernelSpec* spec = nullptr;
  const GemmSpec* gemm = nullptr;
  int64_t batches = 1;
  GemmOperand a, b;
  /// Columns that the epilogue may take in one piece, at most.
  uint32_t run = 1;

  bool uses_tensor_cores() const { return is_half(gemm->dtype); }
};

GemmProblem problem_of(const KernelSpec& spec);

/// The access of a value that is one load, without a predicate or an index from data; null for any other.
const Access* plain_load(const Body& body, ExprId value);

/// The stride of the flattened batch, or -1 where the batch dims lie at no common one.
int64_t flat_batch_stride(const Access& access, const std::vector<int64_t>& batch);

}  // namespace kiln::cuda
