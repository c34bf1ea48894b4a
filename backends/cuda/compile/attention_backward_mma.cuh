// Attention's gradients by the tensor cores of warps (sm_80). Each warp has 16 rows, whose scores, weights and gradients stay
// in its registers; tiles of columns go through a ring of k_stages stages. Where both gradients of keys and values are more
// than registers hold, each has blocks of its own.

namespace kiln {

constexpr u32 k_rows_bytes = tile_bytes(k_tile_rows, k_head_dim) + tile_bytes(k_tile_rows, k_value_dim);
constexpr u32 k_columns_bytes = tile_bytes(k_tile_columns, k_head_dim) + tile_bytes(k_tile_columns, k_value_dim);
// 128 bytes: what lies in tiles begins at a multiple.
constexpr u32 k_stage_bytes = k_columns_bytes + (k_tile_columns * 8 + 127) / 128 * 128;
static_assert(k_rows_bytes + k_stages * k_stage_bytes + k_tile_rows * 8 + flags_bytes(k_most_tiles) <= k_shared_bytes);

template <typename Side, bool has_1, bool has_2>
KILN_DEVICE void gradients(const Arguments& args, Place at, i32 first) {
  using Rows1 = typename Side::Rows1;
  using Rows2 = typename Side::Rows2;
  using Columns1 = typename Side::Columns1;
  using Columns2 = typename Side::Columns2;
  constexpr bool k_rows_are_queries = Rows1::k_is_of_queries;
  constexpr i32 k_tiles = tiles_across(count_of<Columns1>, k_tile_columns);
  u8* const memory = shared_memory();
  u8* const rows_2_memory = memory + tile_bytes(k_tile_rows, k_head_dim);
  u8* const ring = memory + k_rows_bytes;
  f32* const lse_of_rows = reinterpret_cast<f32*>(ring + k_stages * k_stage_bytes);
  u8* const live = reinterpret_cast<u8*>(lse_of_rows + 2 * k_tile_rows);
  const u32 rows_1 = shared_address(memory), rows_2 = shared_address(rows_2_memory), stages = shared_address(ring);
  const u32 lane = thread_index() % 32, warp_row = thread_index() / 32 * 16;
  const i32 in_tile = static_cast<i32>(warp_row + lane / 4), row = first + in_tile;  // and 8 further
  const bool copies_1 = Columns1::may_copy(args), copies_2 = Columns2::may_copy(args);

  fill<Rows1, k_tile_rows>(args, memory, at, first, Rows1::may_copy(args));
  if constexpr (has_1) fill<Rows2, k_tile_rows>(args, rows_2_memory, at, first, Rows2::may_copy(args));
  if constexpr (k_rows_are_queries) {
    fill_statistics<k_tile_rows>(args, at, first, lse_of_rows, lse_of_rows + k_tile_rows, k_log2_e);
  }
  find_live<k_rows_are_queries>(args, at, first, k_tiles, live);
  i32 next = next_live(live, 0, k_tiles), filled = 0;
  const auto fill_stage = [&] {
    if (next < k_tiles) {
      u8* const stage = ring + static_cast<u32>(filled % k_stages) * k_stage_bytes;
      const i32 column = next * k_tile_columns;
      fill<Columns1, k_tile_columns>(args, stage, at, column, copies_1);
      fill<Columns2, k_tile_columns>(args, stage + tile_bytes(k_tile_columns, k_head_dim), at, column, copies_2);
      if constexpr (!k_rows_are_queries) {
        f32* const lse = reinterpret_cast<f32*>(stage + k_columns_bytes);
        fill_statistics<k_tile_columns>(args, at, column, lse, lse + k_tile_columns, k_log2_e);
      }
      next = next_live(live, next + 1, k_tiles);
      ++filled;
    }
    commit_copies();  // empty groups too: the wait below counts steps
  };

  f32 gradient_1[padded(k_head_dim) / 8][4], gradient_2[padded(k_value_dim) / 8][4];
  clear(gradient_1);
  clear(gradient_2);
  KILN_UNROLL for (i32 i = 0; i < k_stages - 1; ++i) fill_stage();
  i32 used = 0;
  for (i32 step = next_live(live, 0, k_tiles); step < k_tiles; step = next_live(live, step + 1, k_tiles)) {
    wait_copies<k_stages - 2>();
    block_barrier();  // this step's stage is there for all, and all are done with the one before
    fill_stage();
    const u32 offset = static_cast<u32>(used++ % k_stages) * k_stage_bytes;
    const u32 columns_1 = stages + offset, columns_2 = columns_1 + tile_bytes(k_tile_columns, k_head_dim);
    const f32* const lse =
        k_rows_are_queries ? lse_of_rows : reinterpret_cast<const f32*>(ring + offset + k_columns_bytes);
    const f32* const delta = lse + (k_rows_are_queries ? k_tile_rows : k_tile_columns);
    const i32 column = static_cast<i32>(lane % 4) * 2;  // and the next, and so on by eights

    f32 weights[k_tile_columns / 8][4], of_weights[k_tile_columns / 8][4];
    multiply_tiles<k_tile_rows, k_tile_columns, k_head_dim>(weights, rows_1, warp_row, columns_1, lane);
    if constexpr (has_1) {
      multiply_tiles<k_tile_rows, k_tile_columns, k_value_dim>(of_weights, rows_2, warp_row, columns_2, lane);
    }
    to_scores<k_rows_are_queries>(args, at, weights, tile_of_scores<k_rows_are_queries>(first, step * k_tile_columns),
                                  row, step * k_tile_columns + column);
    KILN_UNROLL for (i32 j = 0; j < k_tile_columns / 8; ++j) {
      KILN_UNROLL for (i32 e = 0; e < 4; ++e) {
        const i32 query = k_rows_are_queries ? in_tile + e / 2 * 8 : column + 8 * j + e % 2;
        weights[j][e] = exp2_approximate(multiply_add(weights[j][e], k_unit, -lse[query]));
        if constexpr (has_1) of_weights[j][e] = weights[j][e] * (of_weights[j][e] - delta[query]);
      }
    }
    if constexpr (has_1) add_weighted<k_tile_columns, k_head_dim>(gradient_1, of_weights, columns_1, lane);
    if constexpr (has_2) add_weighted<k_tile_columns, k_value_dim>(gradient_2, weights, columns_2, lane);
  }
  wait_copies<0>();  // where no column is live, nobody has waited for the rows
  KILN_UNROLL for (i32 half = 0; half < 2; ++half) {
    if constexpr (has_1) {
      store_row<typename Side::Gradient1>(args, at, row + 8 * half, gradient_1, half, k_scale, lane);
    }
    if constexpr (has_2) store_row<typename Side::Gradient2>(args, at, row + 8 * half, gradient_2, half, 1, lane);
  }
}

}  // namespace kiln
