#include "backends/level_zero/compile/product.h"

#include <algorithm>
#include <numeric>

#include "base/ceil_div.h"

namespace kiln::level_zero {
namespace {

using spv::Op;

int64_t batches_of(const GemmSpec& gemm) {
  return std::accumulate(gemm.batch.begin(), gemm.batch.end(), int64_t{1}, std::multiplies<>());
}

/// Gives a row or a column its place in the pieces that it is cut into.
void open_pieces(Emitter& e, Ids& index, const GemmDims& dims, Id number) {
  std::vector<size_t> places(dims.pieces.size());
  std::iota(places.begin(), places.end(), 0);
  if (!dims.are_one() && dims.extent() <= INT32_MAX) number = e.op(Op::OpUConvert, e.integer(32), {number});
  Ids indices(places.size(), 0);
  open_dims(e, indices, places, dims.pieces, number);
  std::ranges::copy(indices, index.begin() + static_cast<ptrdiff_t>(dims.first));
}

}  // namespace

int64_t groups_of(const GemmSpec& gemm, const ProductTile& tile) {
  return batches_of(gemm) * ceil_div(gemm.m, tile.rows) * ceil_div(gemm.n, tile.columns);
}

double product_cost(const GemmSpec& gemm, const ProductTile& tile, double loads) {
  constexpr double k_busy_groups = 64;  // fewer leave much of the device idle
  const auto groups = static_cast<double>(groups_of(gemm, tile));
  return groups * static_cast<double>(tile.rows * tile.columns) * std::max(1.0, k_busy_groups / groups) * (1 + loads);
}

ProductEmitter::ProductEmitter(Emitter& emitter, const KernelSpec& spec, const GemmSpec& gemm, const ProductTile& tile,
                               uint32_t group_size, uint32_t sub_group_size)
    : e(emitter),
      m_gemm(gemm),
      m_tile(tile),
      m_arguments(begin_kernel(emitter, spec, group_size, sub_group_size)),
      m_a(emitter, spec, gemm.a, m_arguments),
      m_b(emitter, spec, gemm.b, m_arguments),
      m_epilogue(emitter, spec, gemm.epilogue, m_arguments),
      m_dims_of_a(a_dims(gemm)),
      m_dims_of_b(b_dims(gemm)),
      m_batch(gemm.batch.size(), 0) {
  open_tile();
}

void ProductEmitter::open_tile() {
  const std::vector<int64_t> grid{batches_of(m_gemm), ceil_div(m_gemm.m, m_tile.rows),
                                  ceil_div(m_gemm.n, m_tile.columns)};
  Ids place(grid.size(), 0);
  Id number = e.group_id();
  if (groups_of(m_gemm, m_tile) <= INT32_MAX) number = e.op(Op::OpUConvert, e.integer(32), {number});
  open_dims(e, place, {0, 1, 2}, grid, number);
  std::vector<size_t> dims(m_batch.size());
  std::iota(dims.begin(), dims.end(), 0);
  open_dims(e, m_batch, dims, m_gemm.batch, place[0]);
  m_first_row = e.mul(place[1], e.index(m_tile.rows));
  m_first_column = e.mul(place[2], e.index(m_tile.columns));
}

Id ProductEmitter::is_inside(Id index, int64_t extent, int64_t tile_extent) {
  return extent % tile_extent == 0 ? 0 : e.compare(Op::OpULessThan, index, e.index(extent));
}

ProductEmitter::Kept ProductEmitter::keep(Id index, int64_t extent, int64_t tile_extent) {
  const Id inside = is_inside(index, extent, tile_extent);
  return {inside == 0 ? index : e.select(inside, index, e.index(extent - 1)), inside};
}

Id ProductEmitter::operand(BodyEmitter& body, ExprId value, const GemmOperandDims& dims, const Kept& row,
                           const Kept& column) {
  Scope scope = body.root(dims.columns.last() + 1);
  std::copy(m_batch.begin(), m_batch.end(), scope.index.begin());
  open_pieces(e, scope.index, dims.rows, row.index);
  open_pieces(e, scope.index, dims.columns, column.index);
  const Id number = body.scalars().cast(body.evaluate(scope, value), m_gemm.dtype, dtype());
  const Id inside = e.both(row.is_inside, column.is_inside);
  return inside == 0 ? number : e.select(inside, number, body.scalars().zero(dtype()));
}

Id ProductEmitter::a(Id row, Id k) {
  return operand(m_a, m_gemm.a_value, m_dims_of_a, keep(row, m_gemm.m, m_tile.rows), keep(k, m_gemm.k, m_tile.depth));
}

Id ProductEmitter::b(Id k, Id column) {
  return operand(m_b, m_gemm.b_value, m_dims_of_b, keep(k, m_gemm.k, m_tile.depth),
                 keep(column, m_gemm.n, m_tile.columns));
}

bool ProductEmitter::a_lies_along_k() const {
  return neighbours_along(m_gemm.a, m_gemm.a_value, m_dims_of_a.columns) >=
         neighbours_along(m_gemm.a, m_gemm.a_value, m_dims_of_a.rows);
}

bool ProductEmitter::b_lies_along_k() const {
  return neighbours_along(m_gemm.b, m_gemm.b_value, m_dims_of_b.rows) >
         neighbours_along(m_gemm.b, m_gemm.b_value, m_dims_of_b.columns);
}

void ProductEmitter::finish(Id row, Id column, Id sum) {
  const Id inside =
      e.both(e.compare(Op::OpULessThan, row, e.index(m_gemm.m)), e.compare(Op::OpULessThan, column, e.index(m_gemm.n)));
  e.if_then(inside, [&] {
    Scope scope = m_epilogue.root(m_batch.size() + 2);
    std::copy(m_batch.begin(), m_batch.end(), scope.index.begin());
    scope.index[m_batch.size()] = row;
    scope.index[m_batch.size() + 1] = column;
    scope.accumulator = sum;
    for (const Store& store : m_gemm.stores) m_epilogue.evaluate(scope, store.value);
    for (const Store& store : m_gemm.stores) m_epilogue.store(scope, store);
  });
}

}  // namespace kiln::level_zero
