// What kernels of attention's gradients share: FlashAttention-2 (Dao, arXiv 2307.08691), algorithm 2, with a block for each
// tile of rows, so that nothing is added up between blocks. The gradient of a tile of keys, and of one of queries, are the
// same sums over tiles of columns of the other:
//
//     weights = exp(rows 1 * columns 1^T - logsumexp)     gradient 1 += (weights * (rows 2 * columns 2^T - delta)) * columns 1
//                                                         gradient 2 += weights * columns 2
//
// Logsumexp and delta = sum of out * its gradient are the queries', whichever side they are on.

namespace kiln {

struct OfQueries {
  using Rows1 = Q;
  using Rows2 = GradOut;
  using Columns1 = K;
  using Columns2 = V;
  using Gradient1 = GradQ;
  using Gradient2 = void;
};
struct OfKeys {
  using Rows1 = K;
  using Rows2 = V;
  using Columns1 = Q;
  using Columns2 = GradOut;
  using Gradient1 = GradK;
  using Gradient2 = GradV;
};

constexpr i32 k_key_blocks = tiles_across(k_k_len, k_tile_rows), k_query_blocks = tiles_across(k_queries, k_tile_rows);
constexpr i32 k_most_tiles = tiles_across(k_k_len > k_queries ? k_k_len : k_queries, k_tile_columns);

/// Logsumexp times `unit`, and delta, of `rows` queries from `first` on. A logsumexp that no score reaches stands where there
/// is no query before `end`, or none that has a key: its weights are 0. By `threads` threads, the calling one being number
/// `thread` of them.
template <i32 rows, i32 threads = k_threads>
KILN_DEVICE void fill_statistics(const Arguments& args, Place at, i32 first, Accumulator* lse, Accumulator* delta,
                                 Accumulator unit = 1, i32 end = k_queries, u32 thread = thread_index()) {
  constexpr i32 k_lanes = 8, k_piece = 16 / sizeof(Element);
  const i32 lane = static_cast<i32>(thread) % k_lanes;
  const bool may_copy = Out::may_copy(args) && GradOut::may_copy(args);
  for (i32 i = static_cast<i32>(thread) / k_lanes; i < rows; i += threads / k_lanes) {
    const i32 row = first + i;
    Accumulator total = 0;
    for (i32 d = lane * k_piece; row < end && d < k_value_dim; d += k_lanes * k_piece) {
      Run<Element, k_piece> x, y;
      const bool is_piece = may_copy && d + k_piece <= k_value_dim;
      if (is_piece) {
        load_run(x, element<Out>(args, at, row, d), true);
        load_run(y, element<GradOut>(args, at, row, d), true);
      }
      KILN_UNROLL for (i32 j = 0; j < k_piece; ++j) {
        if (!is_piece && d + j < k_value_dim) {
          x.items[j] = *element<Out>(args, at, row, d + j);
          y.items[j] = *element<GradOut>(args, at, row, d + j);
        }
        if (d + j < k_value_dim) {
          total = multiply_add(from_memory(Accumulator{}, x.items[j]), from_memory(Accumulator{}, y.items[j]), total);
        }
      }
    }
    total = combine_lanes<Sum, k_lanes>(total);
    if (lane != 0) continue;
    Accumulator of_row = nothing();
    if (row < end) of_row = *lse_at(args, at.batch, head_of(at, row), query_of(row)) * unit;
    lse[i] = of_row == nothing() ? -nothing() : of_row;
    delta[i] = total;
  }
}

/// Gradient 1, where it has_1, and gradient 2, where it has_2, of the tile of rows from `first` on.
template <typename Side, bool has_1, bool has_2>
KILN_DEVICE void gradients(const Arguments& args, Place at, i32 first);

extern "C" KILN_KERNEL(k_threads, 1) KILN_ENTRY(KILN_ARGUMENTS(Arguments) args) {
  constexpr i32 k_blocks_of_keys = k_key_blocks * (k_splits ? 2 : 1), k_blocks = k_blocks_of_keys + k_query_blocks;
  const Place at = place_of(block_index() / k_blocks);
  const i32 tile = static_cast<i32>(block_index() % k_blocks);
  // Where attention is causal the first keys have the most queries, and the last queries the most keys: they begin first.
  if (tile >= k_blocks_of_keys) {
    gradients<OfQueries, true, false>(args, at, (k_blocks - 1 - tile) * k_tile_rows);
  } else if constexpr (!k_splits) {
    gradients<OfKeys, true, true>(args, at, tile * k_tile_rows);
  } else if (tile % 2 == 0) {
    gradients<OfKeys, true, false>(args, at, tile / 2 * k_tile_rows);
  } else {
    gradients<OfKeys, false, true>(args, at, tile / 2 * k_tile_rows);
  }
}

}  // namespace kiln
