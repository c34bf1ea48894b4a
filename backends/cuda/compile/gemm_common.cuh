// What all gemm kernels share. Before it stand, written for one spec and schedule:
//
//   Accumulator, Element        f32 and f16 or bf16; in simple kernels the accumulator's type twice
//   k_m, k_n, k_k               the extents; k_tile_m, k_tile_n: of a tile; k_threads: of a block; k_stages
//   k_tiles_m, k_tiles_n        tiles of one matrix, k_unit_m rows high: those of a cluster's blocks together; k_batches
//   A, B                        the operands: value(args, batch, outer, k), outer being m or n;
//                               address(), where k_is_copied: elements in place, 16-byte steps; may_copy(args): aligned
//                               k_has_batch: it differs between batches
//                               k_outer_is_adjacent: neighbours in memory are neighbours in outer, else in k
//   k_run, finish(args, batch, m, n, x[k_run])   epilogue and stores for neighbouring columns; finish(…, x[1]) for one

namespace kiln {

struct Tile {
  u32 batch;
  i32 m, n;  // of its first element
};

/// Tiles in an order that keeps operands in the second-level cache: columns of 8 tiles, one beside the other.
KILN_DEVICE Tile tile_of(u32 number) {
  constexpr u32 k_column = 8, k_matrix = k_tiles_m * k_tiles_n, k_strip = k_column * k_tiles_n;
  const u32 batch = number / k_matrix, in_matrix = number % k_matrix;
  const u32 strip = in_matrix / k_strip, in_strip = in_matrix % k_strip;
  const u32 rest = k_tiles_m - strip * k_column, height = rest < k_column ? rest : k_column;
  return {batch, static_cast<i32>((strip * k_column + in_strip % height) * k_unit_m),
          static_cast<i32>(in_strip / height * k_tile_n)};
}

KILN_DEVICE i32 clamped(i32 x, i32 most) { return x < 0 ? 0 : x < most ? x : most; }

/// Finishes `count` neighbouring columns of a row from n on; columns past the end are left alone.
template <int count>
KILN_DEVICE void finish_columns(const Arguments& args, u32 batch, i32 m, i32 n, const Accumulator (&x)[count]) {
  if (m >= k_m) return;
  if constexpr (count == k_run) {
    if (n + count <= k_n) {
      finish(args, batch, m, n, x);
      return;
    }
  }
  KILN_UNROLL for (i32 j = 0; j < count; ++j) {
    const Accumulator one[1] = {x[j]};
    if (n + j < k_n) finish(args, batch, m, n + j, one);
  }
}

// ---- operands of 16-bit elements in shared memory: 128-byte rows of 64 elements; the 16-byte chunk c of row r stands at
// chunk c ^ (r & 7), so that eight rows' chunks lie in different banks. TMA's 128-byte swizzle is the same.
// Where k is adjacent a row is one of the tile's rows along outer; else it is one k, and 64 along outer make a slab.

KILN_DEVICE u32 chunk_at(u32 row, u32 chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

/// A tile of f32 whose rows are permuted, fours as a whole: rows and columns, and the halves of eights, meet in different
/// banks. `width`: 64 or more.
template <i32 width>
KILN_DEVICE i32 staged_at(i32 row, i32 column) {
  return row * width + (column ^ ((row & 7) << 3) ^ (column >> 3 & 4));
}
struct alignas(8) Pair {
  f32 x, y;
};

/// Finishes a staged tile of `rows` x `width` by `threads` threads, the calling one being `thread`.
template <i32 rows, i32 width, i32 threads>
KILN_DEVICE void finish_staged(const Arguments& args, u32 batch, i32 m, i32 n, const f32* staged, i32 thread) {
  constexpr i32 k_across = width / k_run, k_piece = k_run < 4 ? k_run : 4;
  struct alignas(4 * k_piece) Piece {
    f32 items[k_piece];
  };
  KILN_UNROLL for (i32 i = 0; i < (rows * k_across + threads - 1) / threads; ++i) {
    const i32 at = thread + i * threads, row = at / k_across, column = at % k_across * k_run;
    if (rows * k_across % threads != 0 && at >= rows * k_across) break;
    Accumulator x[k_run];
    KILN_UNROLL for (i32 j = 0; j < k_run; j += k_piece) {
      const Piece piece = *reinterpret_cast<const Piece*>(staged + staged_at<width>(row, column + j));
      KILN_UNROLL for (i32 e = 0; e < k_piece; ++e) x[j + e] = piece.items[e];
    }
    finish_columns(args, batch, m + row, n + column, x);
  }
}

}  // namespace kiln
