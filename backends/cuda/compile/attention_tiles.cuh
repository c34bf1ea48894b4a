// Tiles of rows of f16 or bf16 in shared memory, for tensor cores of warps: slabs of 64 along the depth, each rows of 128
// bytes whose 16-byte chunk c stands at chunk c ^ (row & 7), so that eight rows' chunks lie in different banks. The depth
// is padded with zeros to a multiple of 16.

namespace kiln {

KILN_DEVICE u32 chunk_at(u32 row, u32 chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

KILN_DEVICE constexpr i32 padded(i32 depth) { return (depth + 15) / 16 * 16; }
KILN_DEVICE constexpr u32 tile_bytes(i32 rows, i32 depth) { return static_cast<u32>((depth + 63) / 64 * rows * 128); }

/// Starts the copies of `rows` rows of a tensor from `first` on into `memory`, zeros past the ends. What cannot be copied is
/// stored in place of it. By `threads` threads, the calling one being number `thread` of them.
template <typename Tensor, i32 rows, i32 threads = k_threads>
KILN_DEVICE void fill(const Arguments& args, u8* memory, Place at, i32 first, bool may_copy,
                      u32 thread = thread_index()) {
  constexpr i32 k_chunks = padded(Tensor::k_width) / 8;
  for (i32 i = static_cast<i32>(thread); i < rows * k_chunks; i += threads) {
    const i32 row = i / k_chunks, chunk = i % k_chunks, d = chunk * 8;
    const i32 valid = first + row < count_of<Tensor> ? clamped(Tensor::k_width - d, 8) : 0;
    u8* const to = memory + tile_bytes(rows, 64) * (chunk / 8) + chunk_at(row, chunk % 8);
    if (may_copy) {
      const bool is_inside = valid > 0;
      copy16_async(shared_address(to), element<Tensor>(args, at, is_inside ? first + row : 0, is_inside ? d : 0),
                   static_cast<u32>(valid) * 2);
    } else {
      f32 x[8];
      KILN_UNROLL for (i32 j = 0; j < 8; ++j) {
        x[j] = 0;
        if (j < valid) x[j] = from_memory(f32{}, *element<Tensor>(args, at, first + row, d + j));
      }
      *reinterpret_cast<Words4*>(to) = {pack(Element{}, x[0], x[1]), pack(Element{}, x[2], x[3]),
                                        pack(Element{}, x[4], x[5]), pack(Element{}, x[6], x[7])};
    }
  }
}

/// The 16 x 16 fragment at (row, depth), to multiply from the left.
template <i32 rows>
KILN_DEVICE void read_left(u32 (&a)[4], u32 tile, u32 row, u32 depth, u32 lane) {
  const u32 stage = tile + depth / 64 * tile_bytes(rows, 64);
  load_matrices(a, stage + chunk_at(row + lane % 16, depth % 64 / 8 + lane / 16));
}
/// From the right, a product's columns being the tile's rows: those from `row` on in words 0 and 1, 8 further 2 and 3.
template <i32 rows>
KILN_DEVICE void read_right(u32 (&b)[4], u32 tile, u32 row, u32 depth, u32 lane) {
  const u32 stage = tile + depth / 64 * tile_bytes(rows, 64);
  load_matrices(b, stage + chunk_at(row + lane / 16 * 8 + lane % 8, depth % 64 / 8 + lane / 8 % 2));
}
/// The same, a product's columns being the tile's depth and its rows what is summed over.
template <i32 rows>
KILN_DEVICE void read_right_by_depth(u32 (&b)[4], u32 tile, u32 row, u32 depth, u32 lane) {
  const u32 stage = tile + depth / 64 * tile_bytes(rows, 64);
  load_matrices_transposed(b, stage + chunk_at(row + lane / 8 % 2 * 8 + lane % 8, depth % 64 / 8 + lane / 16));
}

template <i32 count>
KILN_DEVICE void clear(f32 (&x)[count][4]) {
  KILN_UNROLL for (i32 j = 0; j < count; ++j) { KILN_UNROLL for (i32 e = 0; e < 4; ++e) x[j][e] = 0; }
}

/// sums (16 rows of the calling warp from `row` on, `columns` columns) = left * right^T over `depth`.
template <i32 left_rows, i32 columns, i32 depth>
KILN_DEVICE void multiply_tiles(f32 (&sums)[columns / 8][4], u32 left, u32 row, u32 right, u32 lane) {
  clear(sums);
  KILN_UNROLL for (u32 d = 0; d < padded(depth); d += 16) {
    u32 a[4];
    read_left<left_rows>(a, left, row, d, lane);
    KILN_UNROLL for (u32 j = 0; j < columns / 16; ++j) {
      u32 b[4];
      read_right<columns>(b, right, 16 * j, d, lane);
      mma(Element{}, sums[2 * j], a, b[0], b[1]);
      mma(Element{}, sums[2 * j + 1], a, b[2], b[3]);
    }
  }
}
/// What a warp holds of 16 columns of a product is what it needs of a left factor.
KILN_DEVICE void to_factor(u32 (&a)[4], const f32 (&low)[4], const f32 (&high)[4]) {
  a[0] = pack(Element{}, low[0], low[1]);
  a[1] = pack(Element{}, low[2], low[3]);
  a[2] = pack(Element{}, high[0], high[1]);
  a[3] = pack(Element{}, high[2], high[3]);
}
/// sums (16 rows of the calling warp, `depth` columns) += weights (those rows, `columns` columns) * right.
template <i32 columns, i32 depth>
KILN_DEVICE void add_weighted(f32 (&sums)[padded(depth) / 8][4], const f32 (&weights)[columns / 8][4], u32 right,
                              u32 lane) {
  KILN_UNROLL for (u32 k = 0; k < columns / 16; ++k) {
    u32 a[4];
    to_factor(a, weights[2 * k], weights[2 * k + 1]);
    KILN_UNROLL for (u32 j = 0; j < padded(depth) / 16; ++j) {
      u32 b[4];
      read_right_by_depth<columns>(b, right, 16 * k, 16 * j, lane);
      mma(Element{}, sums[2 * j], a, b[0], b[1]);
      mma(Element{}, sums[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// Weights are powers of two: of scores in units of k_log2_e.
constexpr f32 k_log2_e = 1.44269504088896341f, k_log_2 = 0.69314718055994531f;
// Where a score is its product scaled, products stand for scores until the exponent, which scales for nothing: scores are in
// units of k_log2_e over this.
constexpr bool k_is_scaled_late = !k_has_score && k_scale > 0;
constexpr f32 k_unit = k_is_scaled_late ? k_scale * k_log2_e : 1.0f;

/// A thread's products to scores, so in units: rows `row` and 8 further, columns `column`, the next, and so on by eights.
template <bool rows_are_queries, bool is_whole, i32 count>
KILN_DEVICE void to_scores(const Arguments& args, Place at, f32 (&x)[count][4], i32 row, i32 column, i32 end) {
  KILN_UNROLL for (i32 j = 0; j < count; ++j) {
    KILN_UNROLL for (i32 e = 0; e < 4; ++e) {
      const i32 r = row + e / 2 * 8, c = column + 8 * j + e % 2;
      const i32 query = rows_are_queries ? r : c, key = rows_are_queries ? c : r;
      if constexpr (k_is_scaled_late) {
        if (!is_whole && is_left_out(query, key, end)) x[j][e] = nothing();
      } else {
        x[j][e] = is_whole ? kept_score(args, at, query, key, x[j][e], k_log2_e)
                           : score_of(args, at, query, key, x[j][e], k_log2_e, end);
      }
    }
  }
}
/// The same of a warp's rows of a tile of the block's.
template <bool rows_are_queries, i32 count>
KILN_DEVICE void to_scores(const Arguments& args, Place at, f32 (&x)[count][4], const TileOfScores& tile, i32 row,
                           i32 column) {
  if (tile.is_whole()) {
    to_scores<rows_are_queries, true>(args, at, x, row, column, tile.end);
  } else {
    to_scores<rows_are_queries, false>(args, at, x, row, column, tile.end);
  }
}

/// The softmax, so far, of the two rows that a thread has some scores of: the highest score, and the thread's part of the
/// sum of weights.
struct Softmax {
  f32 highest[2], sum[2];

  KILN_MEMBER Softmax() : highest{nothing(), nothing()}, sum{0, 0} {}

  /// Scores of more keys become weights. What was weighted before is to be multiplied by `rescale`.
  template <i32 count>
  KILN_MEMBER void weigh(f32 (&x)[count][4], f32 (&rescale)[2]) {
    KILN_UNROLL for (i32 half = 0; half < 2; ++half) {
      f32 best = highest[half];
      KILN_UNROLL for (i32 j = 0; j < count; ++j) best =
          op_maximum(best, op_maximum(x[j][2 * half], x[j][2 * half + 1]));
      best = combine_lanes<Maximum, 4>(best);
      const f32 base = best == nothing() ? 0 : best * k_unit;
      rescale[half] = exp2_approximate(multiply_add(highest[half], k_unit, -base));
      highest[half] = best;
      sum[half] *= rescale[half];
      KILN_UNROLL for (i32 j = 0; j < count; ++j) {
        KILN_UNROLL for (i32 e = 2 * half; e < 2 * half + 2; ++e) {
          x[j][e] = exp2_approximate(multiply_add(x[j][e], k_unit, -base));
          sum[half] += x[j][e];
        }
      }
    }
  }
};

template <i32 count>
KILN_DEVICE void scale_rows(f32 (&x)[count][4], const f32 (&by)[2]) {
  KILN_UNROLL for (i32 j = 0; j < count; ++j) { KILN_UNROLL for (i32 e = 0; e < 4; ++e) x[j][e] *= by[e / 2]; }
}

/// Row `row` of a result, times `factor`; `half`: which of the two rows that a thread has, 0 or 1.
template <typename Tensor, i32 count>
KILN_DEVICE void store_row(const Arguments& args, Place at, i32 row, const f32 (&x)[count][4], i32 half, f32 factor,
                           u32 lane) {
  if (row >= count_of<Tensor>) return;
  const bool may_pair = Tensor::may_pair(args);
  KILN_UNROLL for (i32 j = 0; j < padded(Tensor::k_width) / 8; ++j) {
    const i32 d = 8 * j + static_cast<i32>(lane % 4) * 2;
    const f32 pair[2] = {x[j][2 * half] * factor, x[j][2 * half + 1] * factor};
    if (may_pair && d < Tensor::k_width) {
      *reinterpret_cast<u32*>(element<Tensor>(args, at, row, d)) = pack(Element{}, pair[0], pair[1]);
    } else {
      KILN_UNROLL for (i32 e = 0; e < 2; ++e) {
        if (d + e < Tensor::k_width) to_memory(*element<Tensor>(args, at, row, d + e), pair[e]);
      }
    }
  }
}

/// Row `row` of what a block leaves where keys are in parts; `half` as above, `total`: the sum of its weights.
template <i32 count>
KILN_DEVICE void store_partial(const Partial& partial, const f32 (&sums)[count][4], const Softmax& softmax, i32 half,
                               f32 total, u32 lane) {
  KILN_UNROLL for (i32 j = 0; j < padded(k_value_dim) / 8; ++j) {
    KILN_UNROLL for (i32 e = 0; e < 2; ++e) {
      const i32 d = 8 * j + static_cast<i32>(lane % 4) * 2 + e;
      if (d < k_value_dim) partial.values(d) = sums[j][2 * half + e];
    }
  }
  if (lane % 4 == 0) {
    partial.highest() = softmax.highest[half] * (k_unit * k_log_2);
    partial.weights() = total;
  }
}

/// Results and logsumexps of the two rows that a thread has, `row` and 8 further: sums of weighted values over sums of
/// weights; where keys are in parts, what comes of its part.
template <i32 count>
KILN_DEVICE void store_results(const Arguments& args, const Share& share, i32 row, const f32 (&sums)[count][4],
                               const Softmax& softmax, u32 lane) {
  const Place at = share.at;
  KILN_UNROLL for (i32 half = 0; half < 2; ++half, row += 8) {
    const f32 total = combine_lanes<Sum, 4>(softmax.sum[half]);
    if constexpr (k_parts > 1) {
      if (row < k_queries) store_partial(partial_of(args, at, row, share.part), sums, softmax, half, total, lane);
      continue;
    }
    const bool is_empty = total == 0;
    store_row<Out>(args, at, row, sums, half, is_empty ? 0 : 1 / total, lane);
    if (lane % 4 == 0 && row < k_queries) {
      *lse_at(args, at.batch, head_of(at, row), query_of(row)) =
          is_empty ? nothing() : softmax.highest[half] * (k_unit * k_log_2) + op_log(total);
    }
  }
}

}  // namespace kiln
