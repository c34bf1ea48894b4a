// What attention by the tensor cores of warpgroups shares (sm_90a). One warpgroup produces: it moves tiles of columns by the
// tensor memory accelerator (TMA) into rings of k_stages stages. The others consume: each has 64 rows, whose scores, weights
// and results stay in its registers. Tiles lie as attention_tiles.cuh has them, which is how TMA leaves boxes of 64 along the
// depth, and how products expect them.

namespace kiln {

constexpr u32 k_consumers = k_tile_rows / 64;

/// Results of products come in whole slabs.
KILN_DEVICE constexpr i32 in_slabs(i32 depth) { return (depth + 63) / 64 * 64; }

using Position = PlaceInRing<k_stages>;

/// Addresses in shared memory. full: the stage's tiles have come. empty: every consuming warp is done with them.
struct Ring {
  u32 stages, stage_bytes, barriers;

  KILN_MEMBER u32 stage(const Position& at) const { return stages + at.stage * stage_bytes; }
  KILN_MEMBER u32 full(const Position& at) const { return barriers + 8 * at.stage; }
  KILN_MEMBER u32 empty(const Position& at) const { return barriers + 8 * (k_stages + at.stage); }

  /// By one thread, which publishes them. `arrivals` make a stage full.
  KILN_MEMBER void make_barriers(u32 arrivals) const {
    for (u32 stage = 0; stage < k_stages; ++stage) {
      transaction_barrier_init(barriers + 8 * stage, arrivals);
      transaction_barrier_init(barriers + 8 * (k_stages + stage), k_consumers * 4);
    }
  }
  /// The calling warp is done with a stage.
  KILN_MEMBER void release(const Position& at) const {
    if (thread_index() % 32 == 0) arrive(empty(at));
  }
};
constexpr u32 k_ring_barriers_bytes = 16 * k_stages;

/// Starts the copy of a tile of columns: rows of a tensor from `first` on, zeros in place of those that are not of the same
/// head. By one thread.
template <typename Tensor>
KILN_DEVICE void load_tile(const Arguments& args, u32 to, u32 full, Place at, i32 first) {
  const i32 head = Tensor::k_is_of_queries ? head_of(at, first) : at.head;
  KILN_UNROLL for (i32 d = 0; d < Tensor::k_width; d += 64) {
    tma_load(to + tile_bytes(k_tile_columns, d), Tensor::map(args), full, d,
             Tensor::k_is_of_queries ? query_of(first) : first, head, at.batch);
  }
}

/// What products are computed into, as one array.
template <i32 count>
KILN_DEVICE f32 (&flat(f32 (&x)[count][4]))[4 * count] {
  return reinterpret_cast<f32(&)[4 * count]>(x);
}

/// Starts x (64 rows, a tile's columns) = rows * columns^T over `depth`, as one group.
template <i32 depth, i32 count>
KILN_DEVICE void start_scores(f32 (&x)[count][4], u32 rows, u32 columns) {
  pin(flat(x));
  wgmma_fence();
  KILN_UNROLL for (i32 d = 0; d < padded(depth); d += 16) {
    const i32 slab = d / 64 * 64;
    const u32 left = rows + tile_bytes(64, slab), right = columns + tile_bytes(8 * count, slab), step = d % 64 / 16 * 2;
    wgmma<false, false>(Element{}, flat(x), descriptor_k_major(left) + step, descriptor_k_major(right) + step,
                        d == 0 ? 0 : 1);
  }
  wgmma_commit();
}

/// Starts sums (64 rows, the depth) += factors (64 rows, a tile's columns) * columns, as one group.
template <i32 count, i32 steps>
KILN_DEVICE void start_weighted(f32 (&sums)[count][4], u32 (&factors)[steps][4], u32 columns) {
  constexpr u32 k_slab_bytes = tile_bytes(16 * steps, 64);
  pin(flat(sums));
  KILN_UNROLL for (i32 k = 0; k < steps; ++k) pin(factors[k]);
  wgmma_fence();
  KILN_UNROLL for (u32 k = 0; k < steps; ++k) {
    wgmma<true>(Element{}, flat(sums), factors[k], descriptor_mn_major(columns, k_slab_bytes) + 128 * k, 1);
  }
  wgmma_commit();
}

/// After the wait for products: what they were computed into, and had factors in.
template <i32 count>
KILN_DEVICE void finish(f32 (&x)[count][4]) {
  pin(flat(x));
}
template <i32 count, i32 steps>
KILN_DEVICE void finish(f32 (&sums)[count][4], u32 (&factors)[steps][4]) {
  pin(flat(sums));
  KILN_UNROLL for (i32 k = 0; k < steps; ++k) pin(factors[k]);
}

template <i32 count, i32 steps>
KILN_DEVICE void to_factors(u32 (&factors)[steps][4], const f32 (&x)[count][4]) {
  static_assert(count == 2 * steps);
  KILN_UNROLL for (i32 k = 0; k < steps; ++k) to_factor(factors[k], x[2 * k], x[2 * k + 1]);
}

}  // namespace kiln
