// Matrix products without tensor cores: any dtype, any operand. 256 threads in 16 x 16, each with a few rows and columns
// in registers; operands' tiles of 16 along k in shared memory, the next one read while one is multiplied.

namespace kiln {

constexpr i32 k_tile_k = 16;
constexpr i32 k_rows = k_tile_m / 16, k_columns = k_tile_n / 16;   // of a thread, in fours 64 apart
constexpr i32 k_pitch_m = k_tile_m + 4, k_pitch_n = k_tile_n + 4;  // still a multiple of four, off the banks' period

struct alignas(16) Four {
  Accumulator x[4];
};

/// A thread's share of an operand's tile, on its way from global to shared memory.
template <typename Operand, i32 tile_outer, i32 pitch>
struct Share {
  static constexpr i32 k_count = tile_outer * k_tile_k / k_threads;
  Accumulator x[k_count];

  static KILN_MEMBER i32 outer_of(i32 i) {
    const i32 at = static_cast<i32>(thread_index()) + i * k_threads;
    return Operand::k_outer_is_adjacent ? at % tile_outer : at / k_tile_k;
  }
  static KILN_MEMBER i32 k_of(i32 i) {
    const i32 at = static_cast<i32>(thread_index()) + i * k_threads;
    return Operand::k_outer_is_adjacent ? at / tile_outer : at % k_tile_k;
  }
  KILN_MEMBER void read(const Arguments& args, u32 batch, i32 outer, i32 k) {
    KILN_UNROLL for (i32 i = 0; i < k_count; ++i) {
      const i32 at_outer = outer + outer_of(i), at_k = k + k_of(i);
      x[i] = 0;
      if (at_outer < Operand::k_outer && at_k < k_k) x[i] = Operand::value(args, batch, at_outer, at_k);
    }
  }
  KILN_MEMBER void write(Accumulator* shared) const {
    KILN_UNROLL for (i32 i = 0; i < k_count; ++i) shared[k_of(i) * pitch + outer_of(i)] = x[i];
  }
};

template <i32 count>
KILN_DEVICE void read_fours(Accumulator (&to)[count], const Accumulator* from) {
  KILN_UNROLL for (i32 i = 0; i < count / 4; ++i) {
    const Four four = *reinterpret_cast<const Four*>(from + 64 * i);
    KILN_UNROLL for (i32 j = 0; j < 4; ++j) to[4 * i + j] = four.x[j];
  }
}

/// Finishes `count` neighbouring columns of a row from n on; columns past the end are left alone.
template <i32 count>
KILN_DEVICE void finish_columns(const Arguments& args, u32 batch, i32 m, i32 n, const Accumulator (&x)[count]) {
  if constexpr (count == k_run) {
    if (is_finished_at_once(m, n)) {
      Loaded loaded;
      loaded.read(args, batch, m, n);
      finish(args, batch, m, n, x, loaded);
      return;
    }
  }
  if (m >= k_m) return;
  KILN_UNROLL for (i32 j = 0; j < count; ++j) {
    if (n + j < k_n) finish(args, batch, m, n + j, {x[j]});
  }
}

extern "C" KILN_KERNEL(k_threads, k_blocks) KILN_ENTRY(KILN_ARGUMENTS(Arguments) args) {
  const Tile tile = tile_of(block_index());
  Accumulator* const memory = reinterpret_cast<Accumulator*>(shared_memory());
  constexpr i32 k_buffer = k_tile_k * (k_pitch_m + k_pitch_n);
  const i32 row = static_cast<i32>(thread_index()) / 16 * 4, column = static_cast<i32>(thread_index()) % 16 * 4;

  Accumulator c[k_rows][k_columns];
  KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) { KILN_UNROLL for (i32 j = 0; j < k_columns; ++j) c[i][j] = 0; }
  Share<A, k_tile_m, k_pitch_m> a;
  Share<B, k_tile_n, k_pitch_n> b;
  constexpr i32 k_steps = (k_k + k_tile_k - 1) / k_tile_k;
  if (k_steps > 0) {
    a.read(args, tile.batch, tile.m, 0);
    b.read(args, tile.batch, tile.n, 0);
  }
  for (i32 step = 0; step < k_steps; ++step) {
    // Two buffers and one barrier a step: whoever writes here has met all who read this buffer two steps ago.
    Accumulator* const of_a = memory + step % 2 * k_buffer;
    Accumulator* const of_b = of_a + k_tile_k * k_pitch_m;
    a.write(of_a);
    b.write(of_b);
    block_barrier();
    if (step + 1 < k_steps) {
      a.read(args, tile.batch, tile.m, (step + 1) * k_tile_k);
      b.read(args, tile.batch, tile.n, (step + 1) * k_tile_k);
    }
    KILN_UNROLL for (i32 k = 0; k < k_tile_k; ++k) {
      Accumulator x[k_rows], y[k_columns];
      read_fours(x, of_a + k * k_pitch_m + row);
      read_fours(y, of_b + k * k_pitch_n + column);
      KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
        KILN_UNROLL for (i32 j = 0; j < k_columns; ++j) c[i][j] = multiply_add(x[i], y[j], c[i][j]);
      }
    }
  }
  KILN_UNROLL for (i32 i = 0; i < k_rows; ++i) {
    const i32 m = tile.m + row + i / 4 * 64 + i % 4;
    KILN_UNROLL for (i32 j = 0; j < k_columns; j += 4) {
      const Accumulator x[4] = {c[i][j], c[i][j + 1], c[i][j + 2], c[i][j + 3]};
      finish_columns(args, tile.batch, m, tile.n + column + j / 4 * 64, x);
    }
  }
}

}  // namespace kiln
