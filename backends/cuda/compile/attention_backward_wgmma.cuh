// Attention's gradients by the tensor cores of warpgroups (sm_90a), in the order of FlashAttention-3 (Shah et al., arXiv
// 2407.08608): products of one sum run while the factors of the next are made. Tiles of columns come through a ring of
// k_stages stages; where columns are queries, each head's are tiles of their own, results come along, and warps of the
// producing warpgroup make statistics of them. Where both gradients of keys and values are more than registers hold, each has blocks of its own.

namespace kiln {

constexpr u32 k_rows_1_bytes = tile_bytes(64, k_head_dim),
              k_rows_2_bytes = tile_bytes(64, k_value_dim);  // of a consumer
constexpr u32 k_columns_1_bytes = tile_bytes(k_tile_columns, k_head_dim),
              k_columns_2_bytes = tile_bytes(k_tile_columns, k_value_dim);
constexpr u32 k_stage_bytes = k_columns_1_bytes + 2 * k_columns_2_bytes;  // results lie as their gradients
constexpr u32 k_ring_at = k_consumers * (k_rows_1_bytes + k_rows_2_bytes),
              k_barriers_at = k_ring_at + k_stages * k_stage_bytes;
constexpr u32 k_statistics_at = k_barriers_at + 2 * k_ring_barriers_bytes;
constexpr i32 k_statistics = k_stages * k_tile_columns > k_tile_rows ? (k_stages* k_tile_columns) : k_tile_rows;
constexpr u32 k_live_at = k_statistics_at + 8 * k_statistics;

constexpr i32 k_head_tiles = tiles_across(k_q_len, k_tile_columns);  // of one head's queries
constexpr i32 k_most_column_tiles = k_group * k_head_tiles > k_most_tiles ? (k_group* k_head_tiles) : k_most_tiles;
static_assert(k_live_at + flags_bytes(k_most_column_tiles) <= k_shared_bytes);

/// Column tiles of a side.
template <typename Side>
struct ColumnTiles {
  static constexpr bool k_are_queries = Side::Columns1::k_is_of_queries;
  static constexpr i32 k_count = k_are_queries ? k_group * k_head_tiles : tiles_across(k_k_len, k_tile_columns);

  static KILN_MEMBER i32 first(i32 tile) {
    return k_are_queries ? tile / k_head_tiles * k_q_len + tile % k_head_tiles * k_tile_columns : tile * k_tile_columns;
  }
  /// The first query past those of the tile's that count.
  static KILN_MEMBER i32 end(i32 tile) { return k_are_queries ? (tile / k_head_tiles + 1) * k_q_len : k_queries; }
  /// Of `rows` rows from `row` on.
  static KILN_MEMBER TileOfScores scores(i32 row, i32 rows, i32 tile) {
    return k_are_queries ? TileOfScores{first(tile), k_tile_columns, row, rows, end(tile)}
                         : TileOfScores{row, rows, first(tile), k_tile_columns};
  }
};

template <typename Side>
KILN_DEVICE void produce(const Arguments& args, const Ring& ring, Place at, const u8* live) {
  using Tiles = ColumnTiles<Side>;
  Position position;
  for (i32 step = next_live(live, 0, Tiles::k_count); step < Tiles::k_count;
       step = next_live(live, step + 1, Tiles::k_count)) {
    const i32 first = Tiles::first(step);
    const u32 full = ring.full(position), stage = ring.stage(position);
    wait_for_parity(ring.empty(position), position.parity ^ 1);
    arrive_and_expect(full, Tiles::k_are_queries ? k_stage_bytes : k_stage_bytes - k_columns_2_bytes);
    load_tile<typename Side::Columns1>(args, stage, full, at, first);
    load_tile<typename Side::Columns2>(args, stage + k_columns_1_bytes, full, at, first);
    if constexpr (Tiles::k_are_queries) {
      load_tile<Out>(args, stage + k_columns_1_bytes + k_columns_2_bytes, full, at, first);
    }
    position.advance();
  }
}

/// A lane's share of the sum of products of two rows, `row` of tiles of results and of their gradients. Eight lanes have all.
KILN_DEVICE f32 product_of_rows(const u8* results, const u8* gradients, u32 row, u32 lane) {
  f32 total = 0;
  KILN_UNROLL for (u32 slab = 0; slab < in_slabs(k_value_dim) / 64; ++slab) {
    KILN_UNROLL for (u32 half = 0; half < 16; half += 8) {
      const u32 place = slab * tile_bytes(k_tile_columns, 64) + chunk_at(row, lane) + half;
      const Words2 x = *reinterpret_cast<const Words2*>(results + place),
                   y = *reinterpret_cast<const Words2*>(gradients + place);
      KILN_UNROLL for (u32 i = 0; i < 2; ++i) {
        const Element low_x{static_cast<u16>(x.w[i])}, low_y{static_cast<u16>(y.w[i])};
        const Element high_x{static_cast<u16>(x.w[i] >> 16)}, high_y{static_cast<u16>(y.w[i] >> 16)};
        total = multiply_add(to_f32(low_x), to_f32(low_y), total);
        total = multiply_add(to_f32(high_x), to_f32(high_y), total);
      }
    }
  }
  return total;
}

/// What fill_statistics says of each tile of queries in the ring. By three warps of the producing warpgroup.
KILN_DEVICE void make_statistics(const Arguments& args, const Ring& ring, const Ring& ready, Place at, const u8* live,
                                 u8* memory) {
  using Tiles = ColumnTiles<OfKeys>;
  const u32 thread = thread_index() - 32;
  Position position;
  for (i32 step = next_live(live, 0, Tiles::k_count); step < Tiles::k_count;
       step = next_live(live, step + 1, Tiles::k_count)) {
    f32 of_rows[(k_tile_columns + 95) / 96];  // each thread's of every 96th row
    KILN_UNROLL for (i32 i = 0; i < (k_tile_columns + 95) / 96; ++i) {
      const i32 in_tile = 96 * i + static_cast<i32>(thread), row = Tiles::first(step) + in_tile;
      of_rows[i] = nothing();
      if (in_tile < k_tile_columns && row < Tiles::end(step)) {
        of_rows[i] = *lse_at(args, at.batch, head_of(at, row), query_of(row)) * k_log2_e;
      }
    }
    wait_for_parity(ring.full(position), position.parity);
    f32* const lse = reinterpret_cast<f32*>(memory + k_statistics_at) + position.stage * 2 * k_tile_columns;
    KILN_UNROLL for (i32 i = 0; i < (k_tile_columns + 95) / 96; ++i) {
      const i32 in_tile = 96 * i + static_cast<i32>(thread);
      if (in_tile < k_tile_columns) lse[in_tile] = of_rows[i] == nothing() ? -nothing() : of_rows[i];
    }
    const u8* const gradients = memory + k_ring_at + position.stage * k_stage_bytes + k_columns_1_bytes;
    KILN_UNROLL_BY(1) for (u32 row = thread / 8; row < k_tile_columns; row += 12) {
      const f32 total =
          combine_lanes<Sum, 8>(product_of_rows(gradients + k_columns_2_bytes, gradients, row, thread % 8));
      if (thread % 8 == 0) lse[k_tile_columns + row] = total;
    }
    warp_barrier();
    if (thread % 32 == 0) arrive(ready.full(position));
    position.advance();
  }
}

/// A warpgroup's 64 rows, from `first` on; `rows_1` and `rows_2`: where they are in shared memory.
template <typename Side, bool has_1, bool has_2>
struct Consumer {
  static constexpr bool k_rows_are_queries = Side::Rows1::k_is_of_queries;
  using Tiles = ColumnTiles<Side>;

  const Arguments& args;
  const Ring &ring, &ready;
  Place at;
  i32 first;
  u32 rows_1, rows_2;
  const f32* statistics;  // of rows, or of columns in the first stage
  u32 lane = thread_index() % 32;
  i32 in_tile = static_cast<i32>(thread_index() % 128 / 32 * 16 + lane / 4), row = first + in_tile;  // and 8 further
  i32 column = static_cast<i32>(lane % 4) * 2;  // and the next, and so on by eights
  f32 gradient_1[in_slabs(k_head_dim) / 8][4], gradient_2[in_slabs(k_value_dim) / 8][4];
  f32 weights[k_tile_columns / 8][4], of_weights[k_tile_columns / 8][4];
  u32 factors_1[k_tile_columns / 16][4], factors_2[k_tile_columns / 16][4];
  Position position;

  KILN_MEMBER void weigh(i32 step, const f32* lse) {
    to_scores<k_rows_are_queries>(args, at, weights, Tiles::scores(first, 64, step), row, Tiles::first(step) + column);
    KILN_UNROLL for (i32 j = 0; j < k_tile_columns / 8; ++j) {
      KILN_UNROLL for (i32 e = 0; e < 4; ++e) {
        const i32 query = k_rows_are_queries ? in_tile + e / 2 * 8 : column + 8 * j + e % 2;
        weights[j][e] = exp2_approximate(multiply_add(weights[j][e], k_unit, -lse[query]));
      }
    }
  }
  KILN_MEMBER void weigh_gradients(const f32* delta) {
    KILN_UNROLL for (i32 j = 0; j < k_tile_columns / 8; ++j) {
      KILN_UNROLL for (i32 e = 0; e < 4; ++e) {
        const i32 query = k_rows_are_queries ? in_tile + e / 2 * 8 : column + 8 * j + e % 2;
        of_weights[j][e] = weights[j][e] * (of_weights[j][e] - delta[query]);
      }
    }
  }

  KILN_MEMBER void add_tile(i32 step) {
    const u32 columns_1 = ring.stage(position), columns_2 = columns_1 + k_columns_1_bytes;
    const f32* const lse = statistics + (k_rows_are_queries ? 0 : position.stage * 2 * k_tile_columns);
    wait_for_parity(ring.full(position), position.parity);
    start_scores<k_head_dim>(weights, rows_1, columns_1);
    if constexpr (has_1) start_scores<k_value_dim>(of_weights, rows_2, columns_2);
    if constexpr (Tiles::k_are_queries) wait_for_parity(ready.full(position), position.parity);
    wgmma_wait<has_1 ? 1 : 0>();
    finish(weights);
    weigh(step, lse);
    if constexpr (has_1) {
      wgmma_wait<0>();
      finish(of_weights);
      weigh_gradients(lse + (k_rows_are_queries ? k_tile_rows : k_tile_columns));
    }
    // No sooner: the factors of products under way are registers besides what they were made of.
    if constexpr (has_2) {
      to_factors(factors_2, weights);
      start_weighted(gradient_2, factors_2, columns_2);
    }
    if constexpr (has_1) {
      to_factors(factors_1, of_weights);
      start_weighted(gradient_1, factors_1, columns_1);
    }
    wgmma_wait<0>();
    if constexpr (has_1) finish(gradient_1, factors_1);
    if constexpr (has_2) finish(gradient_2, factors_2);
    warp_barrier();  // all lanes have read the statistics
    ring.release(position);
    position.advance();
  }

  KILN_MEMBER void run(const u8* live) {
    clear(gradient_1);
    clear(gradient_2);
    for (i32 step = next_live(live, 0, Tiles::k_count); step < Tiles::k_count;
         step = next_live(live, step + 1, Tiles::k_count)) {
      add_tile(step);
    }
    KILN_UNROLL for (i32 half = 0; half < 2; ++half) {
      if constexpr (has_1) {
        store_row<typename Side::Gradient1>(args, at, row + 8 * half, gradient_1, half, k_scale, lane);
      }
      if constexpr (has_2) store_row<typename Side::Gradient2>(args, at, row + 8 * half, gradient_2, half, 1, lane);
    }
  }
};

template <typename Side, bool has_1, bool has_2>
KILN_DEVICE void gradients(const Arguments& args, Place at, i32 first) {
  using Rows1 = typename Side::Rows1;
  using Rows2 = typename Side::Rows2;
  using Tiles = ColumnTiles<Side>;
  u8* const memory = shared_memory();
  u8* const live = memory + k_live_at;
  f32* const statistics = reinterpret_cast<f32*>(memory + k_statistics_at);
  const u32 shared = shared_address(memory), warpgroup = thread_index() / 128, consumer = warpgroup - 1;
  const u32 rows_1 = consumer * k_rows_1_bytes, rows_2 = k_consumers * k_rows_1_bytes + consumer * k_rows_2_bytes;
  const i32 own_first = first + static_cast<i32>(consumer * 64);
  const Ring ring{shared + k_ring_at, k_stage_bytes, shared + k_barriers_at},
      ready{shared + k_statistics_at, 8 * k_tile_columns, ring.barriers + k_ring_barriers_bytes};
  if (thread_index() == 0) {
    ring.make_barriers(1);
    ready.make_barriers(3);
    publish_transaction_barriers();
  }
  if (warpgroup > 0) {
    const u32 thread = thread_index() % 128;
    fill<Rows1, 64, 128>(args, memory + rows_1, at, own_first, Rows1::may_copy(args), thread);
    if constexpr (has_1) fill<Rows2, 64, 128>(args, memory + rows_2, at, own_first, Rows2::may_copy(args), thread);
    commit_copies();
    if constexpr (!Tiles::k_are_queries) {
      f32* const lse = statistics + consumer * 64;
      fill_statistics<64, 128>(args, at, own_first, lse, lse + k_tile_rows, k_log2_e, k_queries, thread);
    }
  }
  find_live(args, at, Tiles::k_count, live, [&](i32 tile) { return Tiles::scores(first, k_tile_rows, tile); });
  if (warpgroup == 0) {
    shrink_registers<24>();
    if (thread_index() == 0) {
      produce<Side>(args, ring, at, live);
    } else if (Tiles::k_are_queries && thread_index() >= 32) {
      make_statistics(args, ring, ready, at, live, memory);
    }
  } else {
    grow_registers<240>();
    wait_copies<0>();
    fence_shared_for_tma();
    part_barrier(1 + consumer, 128);  // the rows are there for the warpgroup's products
    Consumer<Side, has_1, has_2>{args,
                                 ring,
                                 ready,
                                 at,
                                 own_first,
                                 shared + rows_1,
                                 shared + rows_2,
                                 statistics + (Tiles::k_are_queries ? 0 : consumer * 64)}
        .run(live);
  }
}

}  // namespace kiln
