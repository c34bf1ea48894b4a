#include "frontend/kernel/gemm_dims.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "frontend/kernel/affine.h"

namespace kiln {
namespace {

/// Strides up to which neighbours still share most of what memory gives at once.
constexpr int64_t k_most_apart = 4;

GemmOperandDims dims_of(const GemmSpec& gemm, const GemmPieces& pieces, int64_t rows, int64_t columns) {
  const auto cut = [](int64_t whole, const std::vector<int64_t>& extents) {
    return extents.empty() ? std::vector<int64_t>{whole} : extents;
  };
  GemmDims of_rows{gemm.batch.size(), cut(rows, pieces.rows)};
  const size_t behind = of_rows.last() + 1;
  return {std::move(of_rows), {behind, cut(columns, pieces.columns)}};
}

}  // namespace

int64_t GemmDims::extent() const { return product(pieces); }

GemmOperandDims a_dims(const GemmSpec& gemm) { return dims_of(gemm, gemm.a_pieces, gemm.m, gemm.k); }
GemmOperandDims b_dims(const GemmSpec& gemm) { return dims_of(gemm, gemm.b_pieces, gemm.k, gemm.n); }

int64_t neighbours_along(const Body& body, ExprId value, const GemmDims& dims) {
  int64_t most = 0;
  for (const ExprId id : needed_by(body, std::span(&value, 1))) {
    if (body.exprs[id].op != ScalarOp::load) continue;
    const int64_t stride = body.accesses[body.exprs[id].slot].strides[dims.last()];
    if (stride >= 1 && stride <= k_most_apart) most = std::max(most, ceil_div(dims.pieces.back(), stride));
  }
  return most;
}

}  // namespace kiln
