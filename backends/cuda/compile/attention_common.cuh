// What all attention kernels share. Before it stand, written for one spec and schedule:
//
//   Accumulator, Element        f32 and f16 or bf16; in simple kernels the accumulator's type twice
//   k_batch, k_kv_heads         a place (batch, head of keys) has k_group heads of queries
//   k_group, k_q_len, k_k_len, k_head_dim, k_value_dim, k_scale
//   k_is_causal, k_causal_offset
//   k_has_score, score(args, b, h, q, k, x)   the score's expression at one point, x being the scaled product
//   k_leaves_out                that expression may leave keys out: -inf
//   Q, K, V, Out; in the backward pass also GradOut, GradQ, GradK, GradV: the tensors. at(args, b, h, i, d): an element;
//                               k_width: extent of d; k_is_of_queries; k_is_copied: rows in steps of 16 bytes;
//                               may_copy(args): aligned, too; k_has_pairs, may_pair(args): the same of pairs
//   lse_at(args, b, h, q)
//   k_splits                    whether gradients of keys and of values have blocks of their own
//   k_tile_rows, k_tile_columns, k_stages, k_threads, k_shared_bytes
//   k_parts                     of keys: more than one in the forward pass alone
//   k_partial_width, workspace(args)   numbers that a block leaves of a row in a part, and where; null of one part
//
// A block has a tile of rows and passes over tiles of columns. In the forward pass rows are queries and columns are keys.
// The queries of a place are rows of all its heads: row = (head in the group) * k_q_len + query.

namespace kiln {

struct Place {
  i32 batch, head;  // of keys
};
constexpr i32 k_places = k_batch * k_kv_heads, k_queries = k_group * k_q_len;
KILN_DEVICE Place place_of(u32 number) {
  return {static_cast<i32>(number / k_kv_heads), static_cast<i32>(number % k_kv_heads)};
}
KILN_DEVICE i32 head_of(Place at, i32 row) { return at.head * k_group + row / k_q_len; }
KILN_DEVICE i32 query_of(i32 row) { return row % k_q_len; }

template <typename Tensor>
constexpr i32 count_of = Tensor::k_is_of_queries ? k_queries : k_k_len;
template <typename Tensor>
KILN_DEVICE auto element(const Arguments& args, Place at, i32 row, i32 d) {
  if constexpr (Tensor::k_is_of_queries) {
    return Tensor::at(args, at.batch, head_of(at, row), query_of(row), d);
  } else {
    return Tensor::at(args, at.batch, at.head, row, d);
  }
}

KILN_DEVICE i32 clamped(i32 x, i32 most) { return x < 0 ? 0 : x < most ? x : most; }
KILN_DEVICE Accumulator nothing() { return static_cast<Accumulator>(-f32_of_bits(0x7f800000u)); }

/// The score of a product that is kept for sure, times `unit`.
KILN_DEVICE Accumulator kept_score(const Arguments& args, Place at, i32 row, i32 key, Accumulator product,
                                   Accumulator unit = 1) {
  if constexpr (k_has_score) {
    return score(args, at.batch, head_of(at, row), query_of(row), key, product * k_scale) * unit;
  } else {
    return product * (k_scale * unit);
  }
}
/// Whether row and key are past the ends, that of rows being `end`, or the key comes too late.
KILN_DEVICE bool is_left_out(i32 row, i32 key, i32 end) {
  if (row >= end || key >= k_k_len) return true;
  return k_is_causal && key > query_of(row) + k_causal_offset;
}
/// The score of any row and key, times `unit`: -inf where they are left out.
KILN_DEVICE Accumulator score_of(const Arguments& args, Place at, i32 row, i32 key, Accumulator product,
                                 Accumulator unit = 1, i32 end = k_queries) {
  return is_left_out(row, key, end) ? nothing() : kept_score(args, at, row, key, product, unit);
}

/// A tile of `rows` queries, of which those from `end` on do not count, and `keys` keys. Whether causality keeps some of it;
/// and all of it, none being past the ends.
struct TileOfScores {
  i32 row, rows, key, keys, end = k_queries;

  KILN_MEMBER i32 last_row() const { return row + rows < end ? row + rows - 1 : end - 1; }
  KILN_MEMBER bool is_of_one_head() const { return row / k_q_len == last_row() / k_q_len; }
  KILN_MEMBER bool is_live() const {
    return !k_is_causal || key <= (is_of_one_head() ? query_of(last_row()) : k_q_len - 1) + k_causal_offset;
  }
  KILN_MEMBER bool is_whole() const {
    if (row + rows > end || key + keys > k_k_len) return false;
    return !k_is_causal || key + keys - 1 <= (is_of_one_head() ? query_of(row) : 0) + k_causal_offset;
  }
};
/// Of rows and columns, whichever of them are queries.
template <bool rows_are_queries>
KILN_DEVICE TileOfScores tile_of_scores(i32 row, i32 column) {
  return rows_are_queries ? TileOfScores{row, k_tile_rows, column, k_tile_columns}
                          : TileOfScores{column, k_tile_columns, row, k_tile_rows};
}

/// Whether the score's expression keeps some of the tile. By one warp, together.
KILN_DEVICE bool keeps_some(const Arguments& args, Place at, const TileOfScores& tile) {
  constexpr i32 k_at_once = 256;
  const i32 lane = static_cast<i32>(thread_index() % 32), points = tile.rows * tile.keys;
  for (i32 begin = 0; begin < points; begin += k_at_once) {
    i32 found = 0;
    for (i32 i = begin + lane; i < begin + k_at_once && i < points; i += 32) {
      const i32 row = tile.row + i / tile.keys, key = tile.key + i % tile.keys;
      found |= score_of(args, at, row, key, 0, 1, tile.end) != nothing() ? 1 : 0;
    }
    if (combine_lanes<Maximum, 32>(found) != 0) return true;
  }
  return false;
}

/// flags[i]: whether there is something in tile_of(i), the scores of a block's rows and its column tile i. The block meets
/// at the end.
template <typename TileOf>
KILN_DEVICE void find_live(const Arguments& args, Place at, i32 tiles, u8* flags, TileOf tile_of) {
  for (i32 i = static_cast<i32>(thread_index() / 32); i < tiles; i += k_threads / 32) {
    const TileOfScores tile = tile_of(i);
    bool is_live = tile.is_live();
    if constexpr (k_leaves_out) is_live = is_live && keeps_some(args, at, tile);
    if (thread_index() % 32 == 0) flags[i] = is_live ? 1 : 0;
  }
  block_barrier();
}
/// Of the tile of rows from `row`, and column tiles that lie end to end.
template <bool rows_are_queries>
KILN_DEVICE void find_live(const Arguments& args, Place at, i32 row, i32 tiles, u8* flags) {
  find_live(args, at, tiles, flags, [&](i32 i) { return tile_of_scores<rows_are_queries>(row, i * k_tile_columns); });
}
/// The first live tile from i on; `tiles` where there is none.
KILN_DEVICE i32 next_live(const u8* flags, i32 i, i32 tiles) {
  while (i < tiles && flags[i] == 0) ++i;
  return i;
}

KILN_DEVICE constexpr i32 tiles_across(i32 extent, i32 tile) { return (extent + tile - 1) / tile; }
KILN_DEVICE constexpr u32 flags_bytes(i32 tiles) { return static_cast<u32>(tiles + 15) / 16 * 16; }

// ---- the forward pass

constexpr i32 k_key_tiles = tiles_across(k_k_len, k_tile_columns), k_row_tiles = tiles_across(k_queries, k_tile_rows);
constexpr i32 k_part_tiles = tiles_across(k_key_tiles, k_parts);  // the last parts may have fewer, or none

/// What a block has: a tile of a place's queries, and one of k_parts parts of the tiles of its keys. Parts lie end to end, and
/// the tiles of each are counted from 0.
struct Share {
  Place at;
  i32 first, part, tiles;

  explicit KILN_MEMBER Share(u32 block) : at(place_of(block / (k_row_tiles * k_parts))) {
    // The last queries have the most keys where attention is causal: they begin first.
    first = (k_row_tiles - 1 - static_cast<i32>(block / k_parts % k_row_tiles)) * k_tile_rows;
    part = static_cast<i32>(block % k_parts);
    tiles = clamped(k_key_tiles - part * k_part_tiles, k_part_tiles);
  }
  /// The first key of a tile.
  KILN_MEMBER i32 key_of(i32 tile) const { return (part * k_part_tiles + tile) * k_tile_columns; }
  /// Whether there is something in each tile of the part, as above.
  KILN_MEMBER void find_live(const Arguments& args, u8* flags) const {
    kiln::find_live(args, at, tiles, flags, [&](i32 i) { return tile_of_scores<true>(first, key_of(i)); });
  }
};

/// What a block leaves of a row in the workspace where keys are in parts: the highest score, the sum of weights, which are
/// powers of e of scores less the highest, and the weighted sum of values, not divided by that.
struct Partial {
  Accumulator* numbers;

  KILN_MEMBER Accumulator& highest() const { return numbers[0]; }
  KILN_MEMBER Accumulator& weights() const { return numbers[1]; }
  KILN_MEMBER Accumulator& values(i32 d) const { return numbers[k_partial_width - k_value_dim + d]; }
};
KILN_DEVICE Partial partial_of(const Arguments& args, Place at, i32 row, i32 part) {
  const i64 place = static_cast<i64>(part) * k_places + at.batch * k_kv_heads + at.head;
  return {workspace(args) + (place * k_queries + row) * k_partial_width};
}

}  // namespace kiln
