// Attention by the tensor cores of warpgroups (sm_90a): FlashAttention-3 (Shah et al., arXiv 2407.08608). While a tile's scores
// become weights, the values of the tile before are summed, and another warpgroup's products run: they start theirs in turn.
// Keys and values have rings of their own, as a tile's keys are done with one step before its values.

namespace kiln {

constexpr u32 k_queries_bytes = tile_bytes(64, k_head_dim);  // of each consumer
constexpr u32 k_keys_bytes = tile_bytes(k_tile_columns, k_head_dim),
              k_values_bytes = tile_bytes(k_tile_columns, k_value_dim);
constexpr u32 k_tiles_bytes = k_consumers * k_queries_bytes + k_stages * (k_keys_bytes + k_values_bytes);
static_assert(k_tiles_bytes + 2 * k_ring_barriers_bytes + flags_bytes(k_part_tiles) <= k_shared_bytes);

struct Rings {
  Ring keys, values;

  explicit KILN_MEMBER Rings(u32 shared)
      : keys{shared + k_consumers * k_queries_bytes, k_keys_bytes, shared + k_tiles_bytes},
        values{keys.stages + k_stages * k_keys_bytes, k_values_bytes, keys.barriers + k_ring_barriers_bytes} {}
};

template <typename Tensor>
KILN_DEVICE void load(const Arguments& args, const Ring& ring, const Position& position, Place at, i32 first) {
  wait_for_parity(ring.empty(position), position.parity ^ 1);
  arrive_and_expect(ring.full(position), tile_bytes(k_tile_columns, Tensor::k_width));
  load_tile<Tensor>(args, ring.stage(position), ring.full(position), at, first);
}
KILN_DEVICE void produce(const Arguments& args, const Rings& rings, const Share& share, const u8* live) {
  Position position;
  for (i32 step = next_live(live, 0, share.tiles); step < share.tiles; step = next_live(live, step + 1, share.tiles)) {
    load<K>(args, rings.keys, position, share.at, share.key_of(step));
    load<V>(args, rings.values, position, share.at, share.key_of(step));
    position.advance();
  }
}

// Barriers of parts of the block: consumers' own, then their turns. Who has had a turn passes the next one on.
constexpr u32 k_own_barriers = 1, k_turns = k_own_barriers + k_consumers;

/// Warpgroup number `consumer`: 64 rows, from `first` on; `queries`: where they are in shared memory.
struct Consumer {
  const Arguments& args;
  const Rings& rings;
  const Share& share;
  i32 first;
  u32 consumer, queries;
  u32 lane = thread_index() % 32;
  i32 row = first + static_cast<i32>(thread_index() % 128 / 32 * 16 + lane / 4);  // and 8 further
  f32 out[in_slabs(k_value_dim) / 8][4], s[k_tile_columns / 8][4], rescale[2];
  u32 weights[k_tile_columns / 16][4];
  Softmax softmax;
  Position of_scores, of_values;

  KILN_MEMBER void wait_for_keys() const { wait_for_parity(rings.keys.full(of_scores), of_scores.parity); }
  KILN_MEMBER void take_turn() const {
    if constexpr (k_consumers > 1) part_barrier(k_turns + consumer, 256);
  }
  KILN_MEMBER void pass_turn() const {
    if constexpr (k_consumers > 1) part_arrive(k_turns + (consumer + 1) % k_consumers, 256);
  }
  KILN_MEMBER void begin_scores() { start_scores<k_head_dim>(s, queries, rings.keys.stage(of_scores)); }
  KILN_MEMBER void end_scores() {
    finish(s);
    rings.keys.release(of_scores);
    of_scores.advance();
  }
  KILN_MEMBER void weigh(i32 step) {
    const i32 key = share.key_of(step);
    to_scores<true>(args, share.at, s, TileOfScores{first, 64, key, k_tile_columns}, row,
                    key + static_cast<i32>(lane % 4) * 2);  // and the next, and so on by eights
    softmax.weigh(s, rescale);
  }
  KILN_MEMBER void begin_sums() {
    wait_for_parity(rings.values.full(of_values), of_values.parity);
    start_weighted(out, weights, rings.values.stage(of_values));
  }
  KILN_MEMBER void end_sums() {
    wgmma_wait<0>();
    finish(out, weights);
    rings.values.release(of_values);
    of_values.advance();
  }

  KILN_MEMBER void run(const u8* live) {
    clear(out);
    i32 step = next_live(live, 0, share.tiles);
    if (step < share.tiles) {
      wait_for_keys();
      begin_scores();
      wgmma_wait<0>();
      end_scores();
      weigh(step);
      to_factors(weights, s);
      if (consumer + 1 == k_consumers) pass_turn();  // the first's
      while ((step = next_live(live, step + 1, share.tiles)) < share.tiles) {
        wait_for_keys();
        take_turn();
        begin_scores();
        begin_sums();
        pass_turn();
        wgmma_wait<1>();  // the scores are there, the sums go on
        end_scores();
        weigh(step);
        end_sums();
        scale_rows(out, rescale);
        to_factors(weights, s);
      }
      begin_sums();
      end_sums();
    }
    store_results(args, share, row, out, softmax, lane);
  }
};

extern "C" KILN_KERNEL(k_threads, 1) KILN_ENTRY(KILN_ARGUMENTS(Arguments) args) {
  const Share share(block_index());
  u8* const memory = shared_memory();
  u8* const live = memory + k_tiles_bytes + 2 * k_ring_barriers_bytes;
  const Rings rings(shared_address(memory));
  const u32 warpgroup = thread_index() / 128, consumer = warpgroup - 1;
  const i32 own_first = share.first + static_cast<i32>(consumer * 64);
  if (thread_index() == 0) {
    rings.keys.make_barriers(1);
    rings.values.make_barriers(1);
    publish_transaction_barriers();
  }
  if (warpgroup > 0) {
    fill<Q, 64, 128>(args, memory + consumer * k_queries_bytes, share.at, own_first, Q::may_copy(args),
                     thread_index() % 128);
    commit_copies();
  }
  share.find_live(args, live);
  if (warpgroup == 0) {
    shrink_registers<k_consumers == 3 ? 32 : 24>();
    if (thread_index() == 0) produce(args, rings, share, live);
  } else {
    grow_registers<k_consumers == 3 ? 160 : 240>();
    wait_copies<0>();
    fence_shared_for_tma();
    part_barrier(k_own_barriers + consumer, 128);  // the queries are there for the warpgroup's products
    Consumer{args, rings, share, own_first, consumer, shared_address(memory) + consumer * k_queries_bytes}.run(live);
  }
}

}  // namespace kiln
