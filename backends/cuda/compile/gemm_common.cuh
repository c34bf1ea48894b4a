// What all gemm kernels share. Before it stand, written for one spec and schedule:
//
//   Accumulator, Element        f32 and f16 or bf16; in simple kernels the accumulator's type twice
//   k_m, k_n, k_k               the extents; k_tile_m, k_tile_n: of a tile; k_threads: of a block; k_stages
//   k_tiles_m, k_tiles_n        tiles of one matrix, k_unit_m rows high: those of a cluster's blocks together; k_batches
//   A, B                        the operands: value(args, batch, outer, k), outer being m or n;
//                               address(), where k_is_copied: elements in place, 16-byte steps; may_copy(args): aligned
//                               k_has_batch: it differs between batches
//                               k_outer_is_adjacent: neighbours in memory are neighbours in outer, else in k
//   k_run, finish(args, batch, m, n, x[k_run], loaded)   epilogue and stores for neighbouring columns; finish(…, x[1]) for one
//   Loaded                      what finish() reads of neighbouring columns in one piece: read(args, batch, m, n)

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

/// Whether k_run neighbouring columns of a row from n on are finished at once.
KILN_DEVICE bool is_finished_at_once(i32 m, i32 n) { return m < k_m && n + k_run <= k_n; }

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

/// Of a thread, for what its next runs read.
constexpr i32 k_bytes_ahead = 64;

/// Finishes a staged tile of `rows` x `width` by `threads` threads, the calling one being `thread`. What several of a thread's
/// runs read is on its way together: no store, which might be to the same memory, stands between.
template <i32 rows, i32 width, i32 threads>
KILN_DEVICE void finish_staged(const Arguments& args, u32 batch, i32 m, i32 n, const f32* staged, i32 thread) {
  constexpr i32 k_across = width / k_run, k_piece = k_run < 4 ? k_run : 4, k_all = rows * k_across,
                k_each = (k_all + threads - 1) / threads, k_fitting = k_bytes_ahead / static_cast<i32>(sizeof(Loaded)),
                k_ahead = k_fitting < 1 ? 1 : k_fitting < k_each ? k_fitting : k_each;
  struct alignas(4 * k_piece) Piece {
    f32 items[k_piece];
  };
  const auto is_any = [&](i32 i) { return i < k_each && (k_all % threads == 0 || thread + i * threads < k_all); };
  const auto row = [&](i32 i) { return (thread + i * threads) / k_across; };
  const auto column = [&](i32 i) { return (thread + i * threads) % k_across * k_run; };
  KILN_UNROLL for (i32 first = 0; first < k_each; first += k_ahead) {
    Loaded loaded[k_ahead];
    KILN_UNROLL for (i32 i = 0; i < k_ahead; ++i) {
      const i32 at_m = m + row(first + i), at_n = n + column(first + i);
      if (is_any(first + i) && is_finished_at_once(at_m, at_n)) loaded[i].read(args, batch, at_m, at_n);
    }
    KILN_UNROLL for (i32 i = 0; i < k_ahead; ++i) {
      if (!is_any(first + i)) break;
      const i32 in_row = row(first + i), in_column = column(first + i), at_m = m + in_row, at_n = n + in_column;
      if (is_finished_at_once(at_m, at_n)) {
        Accumulator x[k_run];
        KILN_UNROLL for (i32 j = 0; j < k_run; j += k_piece) {
          const Piece piece = *reinterpret_cast<const Piece*>(staged + staged_at<width>(in_row, in_column + j));
          KILN_UNROLL for (i32 e = 0; e < k_piece; ++e) x[j + e] = piece.items[e];
        }
        finish(args, batch, at_m, at_n, x, loaded[i]);
      } else if (k_n % k_run != 0 && at_m < k_m) {
        KILN_UNROLL_BY(1) for (i32 j = 0; at_n + j < k_n && j < k_run; ++j) {
          finish(args, batch, at_m, at_n + j, {staged[staged_at<width>(in_row, in_column + j)]});
        }
      }
    }
  }
}

}  // namespace kiln
