// Attention's gradients without tensor cores, any tensors.

namespace kiln {

// Odd: neighbouring rows begin in different banks.
constexpr i32 k_pitch_1 = k_head_dim | 1, k_pitch_2 = k_value_dim | 1, k_pitch_weights = k_tile_columns + 1;
constexpr i32 k_most_queries = k_tile_rows > k_tile_columns ? k_tile_rows : k_tile_columns;
static_assert(((k_tile_rows + k_tile_columns) * (k_pitch_1 + k_pitch_2) + 2 * k_tile_rows * k_pitch_weights +
               2 * k_most_queries) *
                      sizeof(Accumulator) +
                  flags_bytes(k_most_tiles) <=
              k_shared_bytes);

/// A thread's part of a gradient of `depth` columns.
template <i32 depth, i32 pitch>
struct Gradient {
  static constexpr i32 k_count = (depth + 15) / 16;
  Accumulator sums[k_rows][k_count];

  KILN_MEMBER void clear() {
    KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) { KILN_UNROLL for (i32 j = 0; j < k_count; ++j) sums[i][j] = 0; }
  }
  KILN_MEMBER void add(const Accumulator* weights, const Accumulator* columns, i32 y, i32 x) {
    for (i32 k = 0; k < k_tile_columns; ++k) {
      KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
        const Accumulator weight = weights[(y + 16 * i) * k_pitch_weights + k];
        KILN_UNROLL for (i32 j = 0; j < k_count; ++j) {
          if (x + 16 * j < depth) sums[i][j] = multiply_add(weight, columns[k * pitch + x + 16 * j], sums[i][j]);
        }
      }
    }
  }
  template <typename Tensor>
  KILN_MEMBER void store(const Arguments& args, Place at, i32 row, i32 x, Accumulator factor) const {
    KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
      if (row + 16 * i >= count_of<Tensor>) continue;
      KILN_UNROLL for (i32 j = 0; j < k_count; ++j) {
        const i32 d = x + 16 * j;
        if (d < depth) to_memory(*element<Tensor>(args, at, row + 16 * i, d), sums[i][j] * factor);
      }
    }
  }
};

template <typename Side, bool, bool has_2>
KILN_DEVICE void gradients(const Arguments& args, Place at, i32 first) {
  using Columns1 = typename Side::Columns1;
  constexpr bool k_rows_are_queries = Side::Rows1::k_is_of_queries;
  constexpr i32 k_tiles = tiles_across(count_of<Columns1>, k_tile_columns);
  Accumulator* const rows_1 = reinterpret_cast<Accumulator*>(shared_memory());
  Accumulator* const rows_2 = rows_1 + k_tile_rows * k_pitch_1;
  Accumulator* const columns_1 = rows_2 + k_tile_rows * k_pitch_2;
  Accumulator* const columns_2 = columns_1 + k_tile_columns * k_pitch_1;
  Accumulator* const weights_1 = columns_2 + k_tile_columns * k_pitch_2;
  Accumulator* const weights_2 = weights_1 + k_tile_rows * k_pitch_weights;
  Accumulator* const lse = weights_2 + k_tile_rows * k_pitch_weights;
  Accumulator* const delta = lse + k_most_queries;
  u8* const live = reinterpret_cast<u8*>(delta + k_most_queries);
  const i32 y = static_cast<i32>(thread_index()) / 16, x = static_cast<i32>(thread_index()) % 16;

  Gradient<k_head_dim, k_pitch_1> gradient_1;
  Gradient<k_value_dim, k_pitch_2> gradient_2;
  gradient_1.clear();
  gradient_2.clear();
  fill<typename Side::Rows1, k_tile_rows, k_pitch_1>(args, rows_1, at, first);
  fill<typename Side::Rows2, k_tile_rows, k_pitch_2>(args, rows_2, at, first);
  if constexpr (k_rows_are_queries) fill_statistics<k_tile_rows>(args, at, first, lse, delta);
  find_live<k_rows_are_queries>(args, at, first, k_tiles, live);
  for (i32 step = next_live(live, 0, k_tiles); step < k_tiles; step = next_live(live, step + 1, k_tiles)) {
    const i32 column = step * k_tile_columns;
    fill<Columns1, k_tile_columns, k_pitch_1>(args, columns_1, at, column);
    fill<typename Side::Columns2, k_tile_columns, k_pitch_2>(args, columns_2, at, column);
    if constexpr (!k_rows_are_queries) fill_statistics<k_tile_columns>(args, at, column, lse, delta);
    block_barrier();
    Accumulator weights[k_rows][k_columns], of_weights[k_rows][k_columns];
    multiply<k_head_dim, k_pitch_1, k_pitch_1>(weights, rows_1, columns_1, y, x);
    multiply<k_value_dim, k_pitch_2, k_pitch_2>(of_weights, rows_2, columns_2, y, x);
    KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
      KILN_UNROLL for (i32 j = 0; j < k_columns; ++j) {
        const i32 r = y + 16 * i, c = x + 16 * j, query = k_rows_are_queries ? r : c;
        const Accumulator score = k_rows_are_queries ? score_of(args, at, first + r, column + c, weights[i][j])
                                                     : score_of(args, at, column + c, first + r, weights[i][j]);
        const Accumulator weight = op_exp(score - lse[query]);
        weights_2[r * k_pitch_weights + c] = weight;
        weights_1[r * k_pitch_weights + c] = weight * (of_weights[i][j] - delta[query]);
      }
    }
    block_barrier();
    gradient_1.add(weights_1, columns_1, y, x);
    if constexpr (has_2) gradient_2.add(weights_2, columns_2, y, x);
    block_barrier();  // columns, weights and statistics are done with
  }
  gradient_1.template store<typename Side::Gradient1>(args, at, first + y, x, k_scale);
  if constexpr (has_2) gradient_2.template store<typename Side::Gradient2>(args, at, first + y, x, 1);
}

}  // namespace kiln
