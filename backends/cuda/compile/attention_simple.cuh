// Attention without tensor cores, any tensors. The softmax goes along with the keys: Milakov, Gimelshein, "Online normalizer
// calculation for softmax", arXiv 1805.02867.

namespace kiln {

constexpr i32 k_values = (k_value_dim + 15) / 16;
// Odd: neighbouring rows begin in different banks.
constexpr i32 k_pitch_q = k_head_dim | 1, k_pitch_kv = (k_head_dim > k_value_dim ? k_head_dim : k_value_dim) | 1;
constexpr i32 k_pitch_p = k_tile_columns + 1;
static_assert((k_tile_rows * (k_pitch_q + k_pitch_p) + k_tile_columns * k_pitch_kv) * sizeof(Accumulator) +
                  flags_bytes(k_part_tiles) <=
              k_shared_bytes);

extern "C" KILN_KERNEL(k_threads, 1) KILN_ENTRY(KILN_ARGUMENTS(Arguments) args) {
  const Share share(block_index());
  const Place at = share.at;
  const i32 first = share.first;
  Accumulator* const queries = reinterpret_cast<Accumulator*>(shared_memory());
  Accumulator* const weights = queries + k_tile_rows * k_pitch_q;
  Accumulator* const keys = weights + k_tile_rows * k_pitch_p;  // then values
  u8* const live = reinterpret_cast<u8*>(keys + k_tile_columns * k_pitch_kv);
  const i32 y = static_cast<i32>(thread_index()) / 16, x = static_cast<i32>(thread_index()) % 16;

  Accumulator out[k_rows][k_values], highest[k_rows], sum[k_rows];
  KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
    highest[i] = nothing();
    sum[i] = 0;
    KILN_UNROLL for (i32 j = 0; j < k_values; ++j) out[i][j] = 0;
  }
  fill<Q, k_tile_rows, k_pitch_q>(args, queries, at, first);
  share.find_live(args, live);
  for (i32 step = next_live(live, 0, share.tiles); step < share.tiles; step = next_live(live, step + 1, share.tiles)) {
    const i32 key = share.key_of(step);
    fill<K, k_tile_columns, k_pitch_kv>(args, keys, at, key);
    block_barrier();
    Accumulator s[k_rows][k_columns];
    multiply<k_head_dim, k_pitch_q, k_pitch_kv>(s, queries, keys, y, x);
    KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
      const i32 row = y + 16 * i;
      Accumulator best = highest[i];
      KILN_UNROLL for (i32 j = 0; j < k_columns; ++j) {
        s[i][j] = score_of(args, at, first + row, key + x + 16 * j, s[i][j]);
        best = op_maximum(best, s[i][j]);
      }
      best = combine_lanes<Maximum, 16>(best);
      const Accumulator base = best == nothing() ? 0 : best, rescale = op_exp(highest[i] - base);
      highest[i] = best;
      Accumulator total = 0;
      KILN_UNROLL for (i32 j = 0; j < k_columns; ++j) {
        const Accumulator weight = op_exp(s[i][j] - base);
        weights[row * k_pitch_p + x + 16 * j] = weight;
        total += weight;
      }
      sum[i] = sum[i] * rescale + combine_lanes<Sum, 16>(total);
      KILN_UNROLL for (i32 j = 0; j < k_values; ++j) out[i][j] *= rescale;
    }
    block_barrier();  // the keys are done with
    fill<V, k_tile_columns, k_pitch_kv>(args, keys, at, key);
    block_barrier();
    for (i32 k = 0; k < k_tile_columns; ++k) {
      KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
        const Accumulator weight = weights[(y + 16 * i) * k_pitch_p + k];
        KILN_UNROLL for (i32 j = 0; j < k_values; ++j) {
          if (x + 16 * j < k_value_dim) out[i][j] = multiply_add(weight, keys[k * k_pitch_kv + x + 16 * j], out[i][j]);
        }
      }
    }
    block_barrier();  // so are values and weights
  }
  KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
    const i32 row = first + y + 16 * i;
    if (row >= k_queries) continue;
    if constexpr (k_parts > 1) {
      const Partial partial = partial_of(args, at, row, share.part);
      KILN_UNROLL for (i32 j = 0; j < k_values; ++j) {
        const i32 d = x + 16 * j;
        if (d < k_value_dim) partial.values(d) = out[i][j];
      }
      if (x == 0) {
        partial.highest() = highest[i];
        partial.weights() = sum[i];
      }
      continue;
    }
    const bool is_empty = sum[i] == 0;
    KILN_UNROLL for (i32 j = 0; j < k_values; ++j) {
      const i32 d = x + 16 * j;
      if (d < k_value_dim) to_memory(*element<Out>(args, at, row, d), is_empty ? 0 : out[i][j] / sum[i]);
    }
    if (x == 0)
      *lse_at(args, at.batch, head_of(at, row), query_of(row)) = is_empty ? nothing() : highest[i] + op_log(sum[i]);
  }
}

}  // namespace kiln
