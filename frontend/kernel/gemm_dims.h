#pragma once

#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// The iteration dims of a gemm operand's body that are its rows, or its columns: one, or a dim for each piece.
struct GemmDims {
  size_t first = 0;
  std::vector<int64_t> pieces;  // extents, outermost first

  size_t last() const { return first + pieces.size() - 1; }
  bool are_one() const { return pieces.size() == 1; }
  int64_t extent() const;
};

struct GemmOperandDims {
  GemmDims rows, columns;
};
GemmOperandDims a_dims(const GemmSpec& gemm);
GemmOperandDims b_dims(const GemmSpec& gemm);

/// How many neighbours along the dims memory gives at once, in the load of the expression for which they are most: those that
/// lie a few elements apart count by where they lie.
int64_t neighbours_along(const Body& body, ExprId value, const GemmDims& dims);

}  // namespace kiln
