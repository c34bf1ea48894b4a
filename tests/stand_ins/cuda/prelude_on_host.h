// The device prelude's names (backends/cuda/compile/prelude.cuh, where each is explained) on the emulated machine.
// Kernels' texts are compiled behind this file, with no header at all, as they would be on the device.
#define KILN_PRELUDE_VERSION 3

#define KILN_DEVICE static inline __attribute__((always_inline))
#define KILN_MEMBER inline __attribute__((always_inline))
#define KILN_KERNEL(threads, blocks) void
// A cubin says how many blocks make a cluster; so does the object.
#define KILN_CLUSTER_KERNEL(threads, blocks, cluster) \
  const unsigned kiln_emulated_cluster = cluster;     \
  extern "C" void
#define KILN_ARGUMENTS(type) const type
#define KILN_UNROLL
#define KILN_UNROLL_BY(steps)

#include "tests/stand_ins/cuda/device.h"

extern "C" {
#define KILN_UNARY(name)  \
  float name##f(float x); \
  double name(double x);
#define KILN_BINARY(name)          \
  float name##f(float x, float y); \
  double name(double x, double y);
KILN_UNARY(fabs)
KILN_UNARY(exp)
KILN_UNARY(exp2)
KILN_UNARY(expm1)
KILN_UNARY(log)
KILN_UNARY(log1p)
KILN_UNARY(sqrt)
KILN_UNARY(sin)
KILN_UNARY(cos)
KILN_UNARY(tanh)
KILN_UNARY(erf)
KILN_UNARY(floor)
KILN_UNARY(ceil)
KILN_UNARY(rint)
KILN_UNARY(trunc)
KILN_BINARY(fmod)
KILN_BINARY(pow)
KILN_BINARY(atan2)
KILN_BINARY(copysign)
#undef KILN_UNARY
#undef KILN_BINARY
}

namespace kiln {

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
struct alignas(16) Words4 {
  u32 w[4];
};
struct alignas(8) Words2 {
  u32 w[2];
};
struct alignas(64) TensorMap {
  u64 opaque[16];
};

KILN_DEVICE u32 thread_index() { return kiln_emulated_thread_index(); }
KILN_DEVICE u32 block_index() { return kiln_emulated_block_index(); }
KILN_DEVICE u32 block_count() { return kiln_emulated_block_count(); }
KILN_DEVICE u32 cluster_rank() { return kiln_emulated_cluster_rank(); }

KILN_DEVICE f32 f32_of_bits(u32 bits) { return __builtin_bit_cast(f32, bits); }
KILN_DEVICE u32 bits_of_f32(f32 x) { return __builtin_bit_cast(u32, x); }
KILN_DEVICE f64 f64_of_bits(u64 bits) { return __builtin_bit_cast(f64, bits); }
KILN_DEVICE f32 to_f32(bf16 x) { return f32_of_bits(static_cast<u32>(x.bits) << 16); }
KILN_DEVICE f32 to_f32(f16 x) { return kiln_emulated_of_f16(x.bits); }
KILN_DEVICE bf16 to_bf16(f32 x) { return {kiln_emulated_to_bf16(x)}; }
KILN_DEVICE f16 to_f16(f32 x) { return {kiln_emulated_to_f16(x)}; }
KILN_DEVICE u32 pack(bf16, f32 low, f32 high) { return to_bf16(low).bits | static_cast<u32>(to_bf16(high).bits) << 16; }
KILN_DEVICE u32 pack(f16, f32 low, f32 high) { return to_f16(low).bits | static_cast<u32>(to_f16(high).bits) << 16; }
KILN_DEVICE f32 multiply_add(f32 a, f32 b, f32 c) { return kiln_emulated_fmaf(a, b, c); }
KILN_DEVICE f64 multiply_add(f64 a, f64 b, f64 c) { return kiln_emulated_fma(a, b, c); }
KILN_DEVICE i64 multiply_add(i64 a, i64 b, i64 c) { return static_cast<i64>(static_cast<u64>(a) * b + c); }
KILN_DEVICE f32 reciprocal_sqrt(f32 x) { return 1 / sqrtf(x); }
KILN_DEVICE f64 reciprocal_sqrt(f64 x) { return 1 / sqrt(x); }
KILN_DEVICE f32 exp2_approximate(f32 x) { return exp2f(x); }
KILN_DEVICE f32 reciprocal_approximate(f32 x) { return 1 / x; }

KILN_DEVICE u32 lowest_bit(u32 bits) { return static_cast<u32>(__builtin_ctz(bits)); }

template <typename T>
KILN_DEVICE T load_input(const T* from) {
  return *from;
}
KILN_DEVICE void set_status(u32* status, u32 bits) {
  if (status == nullptr) kiln_emulated_assertion_failed("an index is in range");
  kiln_emulated_atomic_or(status, bits);
}

KILN_DEVICE u8* shared_memory() {
  u8* at = kiln_emulated_shared_memory();
  return at + (1024 - kiln_emulated_shared_address(at) % 1024) % 1024;
}
KILN_DEVICE u32 shared_address(const void* pointer) { return kiln_emulated_shared_address(pointer); }

KILN_DEVICE void block_barrier() { kiln_emulated_block_barrier(); }
KILN_DEVICE void part_barrier(u32 id, u32 threads) { kiln_emulated_part_barrier(id, threads); }
KILN_DEVICE void part_arrive(u32 id, u32 threads) { kiln_emulated_part_arrive(id, threads); }
KILN_DEVICE void warp_barrier() { kiln_emulated_warp_barrier(); }
template <typename T>
KILN_DEVICE T shuffle_xor(T x, u32 mask) {
  union {
    T value;
    u64 word;
  } wide;
  wide.word = 0;
  wide.value = x;
  wide.word = kiln_emulated_shuffle_xor(wide.word, mask);
  return wide.value;
}

KILN_DEVICE void copy16_async(u32 shared, const void* from, u32 bytes) {
  kiln_emulated_copy16_async(shared, from, bytes);
}
KILN_DEVICE void commit_copies() { kiln_emulated_commit_copies(); }
template <int pending>
KILN_DEVICE void wait_copies() {
  kiln_emulated_wait_copies(pending);
}

KILN_DEVICE void load_matrices(u32 (&r)[4], u32 shared) { kiln_emulated_load_matrices(r, shared, false); }
KILN_DEVICE void load_matrices_transposed(u32 (&r)[4], u32 shared) { kiln_emulated_load_matrices(r, shared, true); }
KILN_DEVICE void store_matrices(u32 shared, u32 r0, u32 r1, u32 r2, u32 r3) {
  const u32 r[4] = {r0, r1, r2, r3};
  kiln_emulated_store_matrices(shared, r);
}
KILN_DEVICE void mma(bf16, f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { kiln_emulated_mma(c, a, b0, b1, true); }
KILN_DEVICE void mma(f16, f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { kiln_emulated_mma(c, a, b0, b1, false); }

KILN_DEVICE void transaction_barrier_init(u32 shared, u32 arrivals) { kiln_emulated_barrier_init(shared, arrivals); }
KILN_DEVICE void publish_transaction_barriers() { kiln_emulated_fence_proxies(); }
KILN_DEVICE void arrive_and_expect(u32 shared, u32 bytes) {
  kiln_emulated_barrier_arrive(shared, kiln_emulated_cluster_rank(), bytes);
}
KILN_DEVICE void arrive(u32 shared) { kiln_emulated_barrier_arrive(shared, kiln_emulated_cluster_rank(), 0); }
KILN_DEVICE void arrive_at(u32 shared, u32 rank) { kiln_emulated_barrier_arrive(shared, rank, 0); }
KILN_DEVICE void wait_for_parity(u32 shared, u32 parity) { kiln_emulated_barrier_wait(shared, parity); }

KILN_DEVICE void tma_load_multicast(u32 to, const TensorMap& map, u32 barrier, i32 c0, i32 c1, i32 c2, i32 c3,
                                    u16 blocks) {
  const i32 at[4] = {c0, c1, c2, c3};
  kiln_emulated_tma_load(to, &map, barrier, at, blocks);
}
KILN_DEVICE void tma_load(u32 to, const TensorMap& map, u32 barrier, i32 c0, i32 c1, i32 c2, i32 c3) {
  tma_load_multicast(to, map, barrier, c0, c1, c2, c3, static_cast<u16>(1u << cluster_rank()));
}
KILN_DEVICE void tma_store(const TensorMap& map, u32 from, i32 c0, i32 c1, i32 c2, i32 c3) {
  const i32 at[4] = {c0, c1, c2, c3};
  kiln_emulated_tma_store(&map, from, at);
}
KILN_DEVICE void commit_stores() { kiln_emulated_commit_stores(); }
template <int pending>
KILN_DEVICE void wait_stores_read() {
  kiln_emulated_wait_stores(pending);
}
template <int pending>
KILN_DEVICE void wait_stores() {
  kiln_emulated_wait_stores(pending);
}
KILN_DEVICE void fence_shared_for_tma() { kiln_emulated_fence_proxies(); }
KILN_DEVICE void cluster_barrier() { kiln_emulated_cluster_barrier(); }

template <int registers>
KILN_DEVICE void shrink_registers() {}
template <int registers>
KILN_DEVICE void grow_registers() {}

KILN_DEVICE u64 descriptor_k_major(u32 shared) {
  return (static_cast<u64>(shared & 0x3ffffu) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
KILN_DEVICE u64 descriptor_mn_major(u32 shared, u32 slab) {
  return (static_cast<u64>(shared & 0x3ffffu) >> 4) | (static_cast<u64>(slab >> 4) << 16) | (64ull << 32) |
         (1ull << 62);
}
KILN_DEVICE void wgmma_fence() { kiln_emulated_wgmma_fence(); }
KILN_DEVICE void wgmma_commit() { kiln_emulated_wgmma_commit(); }
template <int pending>
KILN_DEVICE void wgmma_wait() {
  kiln_emulated_wgmma_wait(pending);
}
template <typename T, int n>
KILN_DEVICE void pin(T (&)[n]) {}
template <bool m_major_a, bool n_major_b, int n>
KILN_DEVICE void wgmma(bf16, f32 (&d)[n], u64 a, u64 b, u32 accumulate) {
  kiln_emulated_wgmma(d, 2 * n, nullptr, a, b, accumulate, true, m_major_a, n_major_b);
}
template <bool m_major_a, bool n_major_b, int n>
KILN_DEVICE void wgmma(f16, f32 (&d)[n], u64 a, u64 b, u32 accumulate) {
  kiln_emulated_wgmma(d, 2 * n, nullptr, a, b, accumulate, false, m_major_a, n_major_b);
}
template <bool n_major_b, int n>
KILN_DEVICE void wgmma(bf16, f32 (&d)[n], const u32 (&a)[4], u64 b, u32 accumulate) {
  kiln_emulated_wgmma(d, 2 * n, a, 0, b, accumulate, true, false, n_major_b);
}
template <bool n_major_b, int n>
KILN_DEVICE void wgmma(f16, f32 (&d)[n], const u32 (&a)[4], u64 b, u32 accumulate) {
  kiln_emulated_wgmma(d, 2 * n, a, 0, b, accumulate, false, false, n_major_b);
}

template <typename Arguments>
constexpr unsigned argument_bytes(void (*)(Arguments)) {
  return sizeof(Arguments);
}

/// Calls the kernel with its one argument, as a launch would.
template <typename Arguments>
__attribute__((no_sanitize("thread"))) void call_kernel(void (*kernel)(Arguments), const void* arguments) {
  kernel(*static_cast<const Arguments*>(arguments));
}

}  // namespace kiln
