// Attention by the tensor cores of warps (sm_80): FlashAttention-2 (Dao, arXiv 2307.08691). Each warp has 16 queries, whose
// scores, weights and results stay in its registers; tiles of keys and values go through a ring of k_stages stages.

namespace kiln {

constexpr u32 k_queries_bytes = tile_bytes(k_tile_rows, k_head_dim),
              k_keys_bytes = tile_bytes(k_tile_columns, k_head_dim);
constexpr u32 k_stage_bytes = k_keys_bytes + tile_bytes(k_tile_columns, k_value_dim);
static_assert(k_queries_bytes + k_stages * k_stage_bytes + flags_bytes(k_part_tiles) <= k_shared_bytes);

extern "C" KILN_KERNEL(k_threads, 1) KILN_ENTRY(KILN_ARGUMENTS(Arguments) args) {
  const Share share(block_index());
  const Place at = share.at;
  const i32 first = share.first;
  u8* const memory = shared_memory();
  u8* const ring = memory + k_queries_bytes;
  u8* const live = ring + k_stages * k_stage_bytes;
  const u32 queries = shared_address(memory), stages = shared_address(ring);
  const u32 lane = thread_index() % 32, warp_row = thread_index() / 32 * 16;
  const i32 row = first + static_cast<i32>(warp_row + lane / 4);  // and 8 further
  const bool copies_k = K::may_copy(args), copies_v = V::may_copy(args);

  fill<Q, k_tile_rows>(args, memory, at, first, Q::may_copy(args));
  share.find_live(args, live);
  i32 next = next_live(live, 0, share.tiles), filled = 0;
  const auto fill_stage = [&] {
    if (next < share.tiles) {
      u8* const stage = ring + static_cast<u32>(filled % k_stages) * k_stage_bytes;
      fill<K, k_tile_columns>(args, stage, at, share.key_of(next), copies_k);
      fill<V, k_tile_columns>(args, stage + k_keys_bytes, at, share.key_of(next), copies_v);
      next = next_live(live, next + 1, share.tiles);
      ++filled;
    }
    commit_copies();  // empty groups too: the wait below counts steps
  };

  f32 out[padded(k_value_dim) / 8][4];
  Softmax softmax;
  clear(out);
  KILN_UNROLL for (i32 i = 0; i < k_stages - 1; ++i) fill_stage();
  i32 used = 0;
  for (i32 step = next_live(live, 0, share.tiles); step < share.tiles; step = next_live(live, step + 1, share.tiles)) {
    wait_copies<k_stages - 2>();
    block_barrier();  // this step's stage is there for all, and all are done with the one before
    fill_stage();
    const u32 stage = stages + static_cast<u32>(used++ % k_stages) * k_stage_bytes;
    const i32 key = share.key_of(step) + static_cast<i32>(lane % 4) * 2;  // and the next, and so on by eights
    f32 s[k_tile_columns / 8][4];
    multiply_tiles<k_tile_rows, k_tile_columns, k_head_dim>(s, queries, warp_row, stage, lane);

    to_scores<true>(args, at, s, tile_of_scores<true>(first, share.key_of(step)), row, key);
    f32 rescale[2];
    softmax.weigh(s, rescale);
    scale_rows(out, rescale);
    add_weighted<k_tile_columns, k_value_dim>(out, s, stage + k_keys_bytes, lane);
  }
  wait_copies<0>();  // where no key is live, nobody has waited for the queries
  store_results(args, share, row, out, softmax, lane);
}

}  // namespace kiln
