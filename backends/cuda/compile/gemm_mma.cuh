// Matrix products by the tensor cores of warps (sm_80): operands go through a ring of k_stages stages of 64 along k in
// shared memory, filled by asynchronous copies k_stages - 1 steps ahead. Operands that are expressions, or not aligned,
// are computed and stored in place of the copies. The finished tile goes through shared memory to the epilogue.

namespace kiln {

constexpr i32 k_tile_k = 64;
constexpr u32 k_a_bytes = k_tile_m * 128, k_b_bytes = k_tile_n * 128, k_stage_bytes = k_a_bytes + k_b_bytes;
constexpr i32 k_warp_m = k_tile_m / k_warps_m, k_warp_n = k_tile_n / k_warps_n;
constexpr i32 k_steps = (k_k + k_tile_k - 1) / k_tile_k;

/// Starts the copies of one operand's tile at (outer, k) into `memory`, zeros past the ends.
template <typename Operand, i32 tile_outer>
KILN_DEVICE void fill(const Arguments& args, u8* memory, u32 batch, i32 outer, i32 k, bool may_copy) {
  constexpr i32 k_chunks = tile_outer * 8 / k_threads;
  // What is computed takes many registers.
  KILN_UNROLL_BY((Operand::k_is_copied ? k_chunks : 1)) for (i32 i = 0; i < k_chunks; ++i) {
    const u32 at = thread_index() + i * k_threads, chunk = at % 8, row = at / 8;
    const i32 along = static_cast<i32>(chunk * 8);
    i32 at_outer, at_k, valid;
    if (Operand::k_outer_is_adjacent) {
      at_outer = outer + static_cast<i32>(row / 64 * 64) + along;
      at_k = k + static_cast<i32>(row % 64);
      valid = at_k < k_k ? clamped(Operand::k_outer - at_outer, 8) : 0;
    } else {
      at_outer = outer + static_cast<i32>(row);
      at_k = k + along;
      valid = at_outer < Operand::k_outer ? clamped(k_k - at_k, 8) : 0;
    }
    u8* const to = memory + chunk_at(row, chunk);
    if (Operand::k_is_copied && may_copy) {
      const bool is_inside = valid > 0;
      copy16_async(shared_address(to), Operand::address(args, batch, is_inside ? at_outer : 0, is_inside ? at_k : 0),
                   static_cast<u32>(valid) * 2);
    } else {
      f32 x[8];
      KILN_UNROLL for (i32 j = 0; j < 8; ++j) {
        x[j] = 0;
        const i32 by_outer = Operand::k_outer_is_adjacent ? j : 0, by_k = Operand::k_outer_is_adjacent ? 0 : j;
        if (j < valid) x[j] = Operand::value(args, batch, at_outer + by_outer, at_k + by_k);
      }
      *reinterpret_cast<Words4*>(to) = {pack(Element{}, x[0], x[1]), pack(Element{}, x[2], x[3]),
                                        pack(Element{}, x[4], x[5]), pack(Element{}, x[6], x[7])};
    }
  }
}

/// The 16 x 16 fragment of A at row m and k of the stage.
KILN_DEVICE void read_a(u32 (&a)[4], u32 stage, u32 m, u32 k, u32 lane) {
  if (A::k_outer_is_adjacent) {
    const u32 row = m / 64 * 64 + k + lane / 16 * 8 + lane % 8;
    load_matrices_transposed(a, stage + chunk_at(row, m % 64 / 8 + lane / 8 % 2));
  } else {
    load_matrices(a, stage + chunk_at(m + lane % 16, k / 8 + lane / 16));
  }
}

/// Two 16 x 8 fragments of B at columns n and n + 8: words 0, 1 and 2, 3.
KILN_DEVICE void read_b(u32 (&b)[4], u32 stage, u32 n, u32 k, u32 lane) {
  if (B::k_outer_is_adjacent) {
    const u32 row = n / 64 * 64 + k + lane / 8 % 2 * 8 + lane % 8;
    load_matrices_transposed(b, stage + chunk_at(row, n % 64 / 8 + lane / 16));
  } else {
    load_matrices(b, stage + chunk_at(n + lane / 16 * 8 + lane % 8, k / 8 + lane / 8 % 2));
  }
}

extern "C" KILN_KERNEL(k_threads, k_blocks) KILN_ENTRY(KILN_ARGUMENTS(Arguments) args) {
  const Tile tile = tile_of(block_index());
  u8* const memory = shared_memory();
  const u32 shared = shared_address(memory), lane = thread_index() % 32, warp = thread_index() / 32;
  const u32 warp_m = warp / k_warps_n * k_warp_m, warp_n = warp % k_warps_n * k_warp_n;
  const bool copies_a = A::may_copy(args), copies_b = B::may_copy(args);

  const auto fill_stage = [&](i32 step) {
    if (step < k_steps) {
      u8* const stage = memory + static_cast<u32>(step % k_stages) * k_stage_bytes;
      fill<A, k_tile_m>(args, stage, tile.batch, tile.m, step * k_tile_k, copies_a);
      fill<B, k_tile_n>(args, stage + k_a_bytes, tile.batch, tile.n, step * k_tile_k, copies_b);
    }
    commit_copies();  // empty groups too: the wait below counts steps
  };

  f32 c[k_warp_m / 16][k_warp_n / 8][4];
  KILN_UNROLL for (i32 i = 0; i < k_warp_m / 16; ++i) {
    KILN_UNROLL for (i32 j = 0; j < k_warp_n / 8; ++j) { KILN_UNROLL for (i32 e = 0; e < 4; ++e) c[i][j][e] = 0; }
  }
  KILN_UNROLL for (i32 step = 0; step < k_stages - 1; ++step) fill_stage(step);
  for (i32 step = 0; step < k_steps; ++step) {
    wait_copies<k_stages - 2>();
    block_barrier();  // this step's stage is there for all, and all are done with the one before
    fill_stage(step + k_stages - 1);
    const u32 stage = shared + static_cast<u32>(step % k_stages) * k_stage_bytes;
    KILN_UNROLL for (u32 k = 0; k < k_tile_k; k += 16) {
      u32 a[k_warp_m / 16][4];
      KILN_UNROLL for (u32 i = 0; i < k_warp_m / 16; ++i) read_a(a[i], stage, warp_m + 16 * i, k, lane);
      KILN_UNROLL for (u32 j = 0; j < k_warp_n / 16; ++j) {
        u32 b[4];
        read_b(b, stage + k_a_bytes, warp_n + 16 * j, k, lane);
        KILN_UNROLL for (u32 i = 0; i < k_warp_m / 16; ++i) {
          mma(Element{}, c[i][2 * j], a[i], b[0], b[1]);
          mma(Element{}, c[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
  block_barrier();  // the stages' memory is free: the last step has waited for the last copies

  f32* const staged = reinterpret_cast<f32*>(memory);
  KILN_UNROLL for (i32 i = 0; i < k_warp_m / 16; ++i) {
    KILN_UNROLL for (i32 j = 0; j < k_warp_n / 8; ++j) {
      const i32 row = static_cast<i32>(warp_m + lane / 4) + 16 * i,
                column = static_cast<i32>(warp_n + lane % 4 * 2) + 8 * j;
      *reinterpret_cast<Pair*>(staged + staged_at<k_tile_n>(row, column)) = {c[i][j][0], c[i][j][1]};
      *reinterpret_cast<Pair*>(staged + staged_at<k_tile_n>(row + 8, column)) = {c[i][j][2], c[i][j][3]};
    }
  }
  block_barrier();
  finish_staged<k_tile_m, k_tile_n, k_threads>(args, tile.batch, tile.m, tile.n, staged,
                                               static_cast<i32>(thread_index()));
}

}  // namespace kiln
