#pragma once

#include <vector>

#include "backends/level_zero/compile/body_emitter.h"
#include "backends/level_zero/compile/kernel.h"
#include "frontend/kernel/gemm_dims.h"

namespace kiln::level_zero {

/// Elements of C that a work-group makes, and of k that it reads at a time.
struct ProductTile {
  int64_t rows = 1, columns = 1, depth = 1;
};

/// Work-groups.
int64_t groups_of(const GemmSpec& gemm, const ProductTile& tile);

/// How long a product takes, in units of its own: padding, work-groups too few to keep the device busy, and `loads`, elements
/// of operands that are read for each multiplication.
double product_cost(const GemmSpec& gemm, const ProductTile& tile, double loads);

/// What all kernels of a product have in common, whatever multiplies: a tile's place, operands, and what becomes of sums.
/// Operands are expressions: they are evaluated where they are read, at indices kept inside the matrix, and count as 0
/// beyond it.
class ProductEmitter {
 public:
  /// Begins the kernel, in which the work-group makes one tile.
  ProductEmitter(Emitter& emitter, const KernelSpec& spec, const GemmSpec& gemm, const ProductTile& tile,
                 uint32_t group_size, uint32_t sub_group_size);

  ScalarEmitter& scalars() { return m_a.scalars(); }
  DType dtype() const { return accumulator_of(m_gemm.dtype); }  // of sums
  Id first_row() const { return m_first_row; }
  Id first_column() const { return m_first_column; }

  /// In the dtype of sums.
  Id a(Id row, Id k);
  Id b(Id k, Id column);
  /// Whether neighbours of an operand's memory are rather neighbours along k.
  bool a_lies_along_k() const;
  bool b_lies_along_k() const;

  /// The epilogue and the stores of one element of C, if it is one.
  void finish(Id row, Id column, Id sum);

 private:
  /// Whether an index is in the matrix; 0 where whole tiles make up the extent.
  Id is_inside(Id index, int64_t extent, int64_t tile_extent);
  /// An index to read at, and whether it is the one that was asked for.
  struct Kept {
    Id index = 0, is_inside = 0;
  };
  Kept keep(Id index, int64_t extent, int64_t tile_extent);
  Id operand(BodyEmitter& body, ExprId value, const GemmOperandDims& dims, const Kept& row, const Kept& column);
  void open_tile();

  Emitter& e;
  const GemmSpec& m_gemm;
  const ProductTile m_tile;
  const KernelArguments m_arguments;
  BodyEmitter m_a, m_b, m_epilogue;
  const GemmOperandDims m_dims_of_a, m_dims_of_b;
  Ids m_batch;
  Id m_first_row = 0, m_first_column = 0;
};

}  // namespace kiln::level_zero
