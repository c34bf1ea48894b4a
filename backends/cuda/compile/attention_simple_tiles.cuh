// Tiles in shared memory and their products without tensor cores. 256 threads in 16 x 16: thread (y, x) has rows y, y + 16, …
// and columns x, x + 16, … of each product.

namespace kiln {

constexpr i32 k_rows = k_tile_rows / 16, k_columns = k_tile_columns / 16;

/// Rows of a tensor into shared memory, zeros past the end.
template <typename Tensor, i32 rows, i32 pitch>
KILN_DEVICE void fill(const Arguments& args, Accumulator* to, Place at, i32 first) {
  for (i32 i = static_cast<i32>(thread_index()); i < rows * Tensor::k_width; i += k_threads) {
    const i32 row = i / Tensor::k_width, d = i % Tensor::k_width;
    Accumulator x = 0;
    if (first + row < count_of<Tensor>) x = from_memory(Accumulator{}, *element<Tensor>(args, at, first + row, d));
    to[row * pitch + d] = x;
  }
}

/// products = rows * columns^T over `depth`.
template <i32 depth, i32 row_pitch, i32 column_pitch>
KILN_DEVICE void multiply(Accumulator (&products)[k_rows][k_columns], const Accumulator* rows,
                          const Accumulator* columns, i32 y, i32 x) {
  KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) { KILN_UNROLL for (i32 j = 0; j < k_columns; ++j) products[i][j] = 0; }
  for (i32 d = 0; d < depth; ++d) {
    Accumulator of_columns[k_columns];
    KILN_UNROLL for (i32 j = 0; j < k_columns; ++j) of_columns[j] = columns[(x + 16 * j) * column_pitch + d];
    KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
      const Accumulator of_row = rows[(y + 16 * i) * row_pitch + d];
      KILN_UNROLL for (i32 j = 0; j < k_columns; ++j) {
        products[i][j] = multiply_add(of_row, of_columns[j], products[i][j]);
      }
    }
  }
}

}  // namespace kiln
