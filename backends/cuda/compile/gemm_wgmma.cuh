// Matrix products by the tensor cores of warpgroups (sm_90a). One warpgroup produces: its first thread moves tiles of 64
// along k by the tensor memory accelerator (TMA) into a ring of k_stages stages. The others consume: each multiplies 64
// rows of the tile, then finishes them through its own piece of shared memory while the producer is at the next tile.
// Blocks are persistent. In a cluster of two, the blocks make tiles one below the other and each loads half of B for both.
//
// full[s]: stage s holds its tiles (the bytes have come). empty[s]: every consuming warp of the cluster is done with it.
// Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix"; the arrangement is CUTLASS's warp-specialised persistent one.

namespace kiln {

constexpr i32 k_tile_k = 64;
constexpr u32 k_consumers = k_tile_m / 64;
constexpr u32 k_a_bytes = k_tile_m * 128, k_b_bytes = k_tile_n * 128, k_slab_bytes = 64 * 128;
constexpr u32 k_staged_bytes = 16 * 64 * 4;  // of each consuming warp
constexpr u32 k_units = k_tiles_m * k_tiles_n * k_batches;
constexpr i32 k_steps = (k_k + k_tile_k - 1) / k_tile_k;

/// Addresses in shared memory.
struct Ring {
  u32 a, b, staged, full, empty;

  explicit KILN_MEMBER Ring(u32 shared)
      : a(shared),
        b(a + k_stages * k_a_bytes),
        staged(b + k_stages * k_b_bytes),
        full(staged + k_consumers * 4 * k_staged_bytes),
        empty(full + 8 * k_stages) {}
};

using Position = PlaceInRing<k_stages>;

/// A's tile: boxes of 64 along k and all rows, or of 64 rows (a slab) and 64 along k.
KILN_DEVICE void load_a(const Arguments& args, u32 to, u32 full, const Tile& tile, i32 k) {
  const i32 batch = A::k_has_batch ? static_cast<i32>(tile.batch) : 0;
  if (A::k_outer_is_adjacent) {
    KILN_UNROLL for (u32 slab = 0; slab < k_consumers; ++slab) {
      tma_load(to + slab * k_slab_bytes, args.map0, full, tile.m + static_cast<i32>(slab * 64), k, batch, 0);
    }
  } else {
    tma_load(to, args.map0, full, k, tile.m, batch, 0);
  }
}

/// This block's share of B's tile, for all blocks of the cluster.
KILN_DEVICE void load_b(const Arguments& args, u32 to, u32 full, const Tile& tile, i32 k, u32 rank) {
  const i32 batch = B::k_has_batch ? static_cast<i32>(tile.batch) : 0;
  constexpr u16 k_all = (1 << k_cluster) - 1;
  const auto load = [&](u32 offset, i32 c0, i32 c1) {
    if (k_cluster > 1) {
      tma_load_multicast(to + offset, args.map1, full, c0, c1, batch, 0, k_all);
    } else {
      tma_load(to + offset, args.map1, full, c0, c1, batch, 0);
    }
  };
  if (B::k_outer_is_adjacent) {
    constexpr u32 k_share = k_tile_n / 64 / k_cluster;
    KILN_UNROLL for (u32 i = 0; i < k_share; ++i) {
      const u32 slab = rank * k_share + i;
      load(slab * k_slab_bytes, tile.n + static_cast<i32>(slab * 64), k);
    }
  } else {
    constexpr u32 k_share = k_tile_n / k_cluster;
    load(rank * k_share * 128, k, tile.n + static_cast<i32>(rank * k_share));
  }
}

KILN_DEVICE Tile own_tile(u32 unit, u32 rank) {
  Tile tile = tile_of(unit);
  tile.m += static_cast<i32>(rank * k_tile_m);
  return tile;
}

KILN_DEVICE void produce(const Arguments& args, const Ring& ring, u32 rank) {
  Position at;
  for (u32 unit = block_index() / k_cluster; unit < k_units; unit += block_count() / k_cluster) {
    const Tile tile = own_tile(unit, rank);
    for (i32 step = 0; step < k_steps; ++step) {
      const u32 full = ring.full + 8 * at.stage;
      wait_for_parity(ring.empty + 8 * at.stage, at.parity ^ 1);
      arrive_and_expect(full, k_a_bytes + k_b_bytes);
      load_a(args, ring.a + at.stage * k_a_bytes, full, tile, step * k_tile_k);
      load_b(args, ring.b + at.stage * k_b_bytes, full, tile, step * k_tile_k, rank);
      at.advance();
    }
  }
}

/// Tells every producer of the cluster that this warp is done with the stage.
KILN_DEVICE void release(const Ring& ring, u32 stage, u32 lane) {
  if (lane < k_cluster) arrive_at(ring.empty + 8 * stage, lane);
}

/// Starts the products of one stage as one group.
KILN_DEVICE void multiply(f32 (&d)[k_tile_n / 2], u32 a, u32 b, bool is_first) {
  const u64 of_a = A::k_outer_is_adjacent ? descriptor_mn_major(a, k_slab_bytes) : descriptor_k_major(a);
  const u64 of_b = B::k_outer_is_adjacent ? descriptor_mn_major(b, k_slab_bytes) : descriptor_k_major(b);
  constexpr u64 k_step_a = A::k_outer_is_adjacent ? 128 : 2, k_step_b = B::k_outer_is_adjacent ? 128 : 2;
  pin(d);
  wgmma_fence();
  KILN_UNROLL for (u32 k = 0; k < k_tile_k / 16; ++k) {
    wgmma<A::k_outer_is_adjacent, B::k_outer_is_adjacent>(Element{}, d, of_a + k * k_step_a, of_b + k * k_step_b,
                                                          is_first && k == 0 ? 0 : 1);
  }
  wgmma_commit();
  pin(d);
}

/// 64 rows of the tile, 64 columns at a time: registers, shared memory, epilogue. Each warp has 16 of the rows and waits
/// for no other. `staged` is the warp's.
KILN_DEVICE void finish_rows(const Arguments& args, const f32 (&d)[k_tile_n / 2], f32* staged, const Tile& tile,
                             u32 consumer) {
  const u32 warp = thread_index() / 32 % 4, lane = thread_index() % 32;
  const i32 row = static_cast<i32>(lane / 4);
  KILN_UNROLL for (i32 part = 0; part < k_tile_n / 64; ++part) {
    warp_barrier();  // the piece is read out
    KILN_UNROLL for (i32 j = 0; j < 8; ++j) {
      const i32 column = 8 * j + static_cast<i32>(lane % 4) * 2, at = (part * 8 + j) * 4;
      *reinterpret_cast<Pair*>(staged + staged_at<64>(row, column)) = {d[at], d[at + 1]};
      *reinterpret_cast<Pair*>(staged + staged_at<64>(row + 8, column)) = {d[at + 2], d[at + 3]};
    }
    warp_barrier();  // and written
    finish_staged<16, 64, 32>(args, tile.batch, tile.m + static_cast<i32>(consumer * 64 + warp * 16),
                              tile.n + part * 64, staged, static_cast<i32>(lane));
  }
}

KILN_DEVICE void consume(const Arguments& args, const Ring& ring, u8* memory, u32 rank, u32 consumer) {
  const u32 lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  f32* const staged = reinterpret_cast<f32*>(memory + (ring.staged - ring.a) + (consumer * 4 + warp) * k_staged_bytes);
  // This consumer's 64 rows of A's tile: as many rows, or one slab; both are 8 KiB.
  const u32 a = ring.a + consumer * k_slab_bytes;
  Position at;
  f32 d[k_tile_n / 2];
  for (u32 unit = block_index() / k_cluster; unit < k_units; unit += block_count() / k_cluster) {
    u32 previous = 0;
    for (i32 step = 0; step < k_steps; ++step) {
      wait_for_parity(ring.full + 8 * at.stage, at.parity);
      multiply(d, a + at.stage * k_a_bytes, ring.b + at.stage * k_b_bytes, step == 0);
      if (step > 0) {
        wgmma_wait<1>();  // the step before is done, this one goes on
        release(ring, previous, lane);
      }
      previous = at.stage;
      at.advance();
    }
    wgmma_wait<0>();
    pin(d);
    release(ring, previous, lane);
    finish_rows(args, d, staged, own_tile(unit, rank), consumer);
  }
}

extern "C" KILN_CLUSTER_KERNEL(k_threads, 1, k_cluster) KILN_ENTRY(KILN_ARGUMENTS(Arguments) args) {
  u8* const memory = shared_memory();
  const Ring ring(shared_address(memory));
  const u32 rank = k_cluster > 1 ? cluster_rank() : 0, warpgroup = thread_index() / 128;
  if (thread_index() == 0) {
    for (u32 stage = 0; stage < k_stages; ++stage) {
      transaction_barrier_init(ring.full + 8 * stage, 1);
      transaction_barrier_init(ring.empty + 8 * stage, k_consumers * 4 * k_cluster);
    }
    publish_transaction_barriers();
  }
  if (k_cluster > 1) {
    cluster_barrier();
  } else {
    block_barrier();
  }
  if (warpgroup == 0) {
    shrink_registers<40>();
    if (thread_index() == 0) produce(args, ring, rank);
  } else {
    grow_registers<232>();
    consume(args, ring, memory, rank, warpgroup - 1);
  }
  // No block leaves while another may still signal its barriers or fill its memory.
  if (k_cluster > 1) cluster_barrier();
}

}  // namespace kiln
