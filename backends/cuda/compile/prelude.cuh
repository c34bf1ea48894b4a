// Kiln's device prelude, version 3: the only place with inline PTX, and all that a kernel may use besides plain C++
// (no header, no CUDA built-in is named outside of this file). A kernel's text is
//
//     prelude.cuh  scalar.cuh  what the generator wrote for one spec  one of the kernels' templates
//
// so whoever supplies these names on another machine can run the very same kernel bodies; tests do that on the host.
// Bump KILN_PRELUDE_VERSION whenever a function here changes what it promises.
//
// Words. block: threads that share memory; warp: 32 threads; warpgroup: 4 warps, the first of them a multiple of 4;
// cluster: blocks that reach one another's shared memory. A function marked `aligned` is called by all threads of its
// warp (or warpgroup) together, converged. A u32 called `shared` is an address in shared memory, in bytes.
//
// What may be relied on:
//   - grids, blocks and clusters have one dimension; a cluster is blocks r * size .. r * size + size - 1;
//   - shared memory is undefined at the start;
//   - whatever is started by an asynchronous function (copy16_async, tma_*, wgmma) happens at any time between its start
//     and the wait that covers it, in any order except where said; its source must stay, and its destination must not
//     be read or written, until then.
#define KILN_PRELUDE_VERSION 3

#define KILN_DEVICE static __device__ __forceinline__
// The same in a class, after `static`.
#define KILN_MEMBER __device__ __forceinline__
// The entry point: `extern "C" KILN_KERNEL(threads, blocks an SM should hold) name(KILN_ARGUMENTS(Arguments) args)`.
#define KILN_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define KILN_CLUSTER_KERNEL(threads, blocks, cluster) \
  __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, blocks)
#define KILN_ARGUMENTS(type) const __grid_constant__ type
#define KILN_UNROLL _Pragma("unroll")
// Before a loop: `steps` of it at a time, which need not divide how many there are.
#define KILN_UNROLL_BY(steps) KILN_PRAGMA(unroll steps)
#define KILN_PRAGMA(text) _Pragma(#text)

extern "C" __device__ void __assertfail(const char* assertion, const char* file, unsigned line, const char* function,
                                        decltype(sizeof 0) character_bytes);

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
/// Storage only: arithmetic is in f32.
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

// ---- where a thread is

KILN_DEVICE u32 thread_index() { return threadIdx.x; }
KILN_DEVICE u32 block_index() { return blockIdx.x; }
KILN_DEVICE u32 block_count() { return gridDim.x; }
/// The block's number in its cluster; 0 without one.
KILN_DEVICE u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// ---- bits and conversions. Roundings are to nearest even, NaN stays NaN, denormals are kept.

KILN_DEVICE f32 f32_of_bits(u32 bits) { return __uint_as_float(bits); }
KILN_DEVICE u32 bits_of_f32(f32 x) { return __float_as_uint(x); }
KILN_DEVICE f64 f64_of_bits(u64 bits) { return __longlong_as_double(static_cast<i64>(bits)); }
KILN_DEVICE f32 to_f32(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
KILN_DEVICE f32 to_f32(f16 x) {
  f32 r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
KILN_DEVICE bf16 to_bf16(f32 x) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
KILN_DEVICE f16 to_f16(f32 x) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
/// Two neighbours of one element type in a word, `low` at the lower address.
KILN_DEVICE u32 pack(bf16, f32 low, f32 high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
KILN_DEVICE u32 pack(f16, f32 low, f32 high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
/// Exact product, one rounding.
KILN_DEVICE f32 multiply_add(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
KILN_DEVICE f64 multiply_add(f64 a, f64 b, f64 c) { return __fma_rn(a, b, c); }
KILN_DEVICE i64 multiply_add(i64 a, i64 b, i64 c) { return static_cast<i64>(static_cast<u64>(a) * b + c); }
/// At most 2 ulp.
KILN_DEVICE f32 reciprocal_sqrt(f32 x) { return rsqrtf(x); }
KILN_DEVICE f64 reciprocal_sqrt(f64 x) { return rsqrt(x); }
/// 2^x, at most 2^-22 off relatively; 0 where that would be denormal.
KILN_DEVICE f32 exp2_approximate(f32 x) {
  f32 r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
/// 1/x, at most 1 ulp off; 0 where that would be denormal.
KILN_DEVICE f32 reciprocal_approximate(f32 x) {
  f32 r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// The number of the lowest bit that is set; some are.
KILN_DEVICE u32 lowest_bit(u32 bits) { return static_cast<u32>(__ffs(static_cast<i32>(bits))) - 1; }

// ---- global memory

/// Of a buffer that the launch only reads: may happen before what is stored earlier.
template <typename T>
KILN_DEVICE T load_input(const T* from) {
  return __ldg(from);
}
KILN_DEVICE f16 load_input(const f16* from) { return {__ldg(&from->bits)}; }
KILN_DEVICE bf16 load_input(const bf16* from) { return {__ldg(&from->bits)}; }

/// Sets bits of the launch's status; seen by the host when the launch is done. A launch without a status ends in the device's
/// assertion, and with it all work of the process there.
KILN_DEVICE void set_status(u32* status, u32 bits) {
  if (status == nullptr) __assertfail("an index is in range", "a kernel of Kiln", 0, "set_status", 1);
  atomicOr(status, bits);
}

// ---- shared memory

/// The launch's dynamic shared memory. It starts at a multiple of 1024: launches ask for 1024 bytes more than they use.
KILN_DEVICE u8* shared_memory() {
  extern __shared__ __align__(1024) u8 kiln_shared_memory[];
  const u32 at = static_cast<u32>(__cvta_generic_to_shared(kiln_shared_memory));
  return kiln_shared_memory + (((at + 1023u) & ~1023u) - at);
}
KILN_DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// ---- threads together

/// All threads of the block meet; what any wrote before is seen by all after.
KILN_DEVICE void block_barrier() { __syncthreads(); }
/// The same for `threads` (a multiple of 32) threads of the block that name the same id, 1 to 15. Aligned.
KILN_DEVICE void part_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Counts as having come to a part_barrier of others, without waiting for it. Aligned.
KILN_DEVICE void part_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
KILN_DEVICE void warp_barrier() { __syncwarp(); }
/// `x` of the lane whose number differs in the bits of `mask`. Aligned.
template <typename T>
KILN_DEVICE T shuffle_xor(T x, u32 mask) {
  return __shfl_xor_sync(0xffffffffu, x, static_cast<int>(mask));
}

// ---- copies into shared memory (sm_80 and later)

/// 16 bytes from global to shared, both 16-byte aligned; `bytes` (0 to 16) are read, the rest becomes 0.
KILN_DEVICE void copy16_async(u32 shared, const void* from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes)
               : "memory");
}
/// Closes the calling thread's group of copies started since the last one; groups may be empty.
KILN_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most `pending` of the calling thread's latest groups are unfinished. Others see them after a barrier only.
template <int pending>
KILN_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- matrices of 8 x 8 16-bit elements between shared memory and a warp (sm_80; store_matrices: sm_90). Aligned.
// Lane 8 i + r gives the address of row r (16 bytes, 16-byte aligned) of matrix i. In registers lane 4 r + c holds
// elements (r, 2 c) and (r, 2 c + 1) of matrix i in word i.

KILN_DEVICE void load_matrices(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
/// As above, transposed: lane 4 r + c gets elements (2 c, r) and (2 c + 1, r).
KILN_DEVICE void load_matrices_transposed(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
KILN_DEVICE void store_matrices(u32 shared, u32 r0, u32 r1, u32 r2, u32 r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

// ---- tensor cores of a warp (sm_80). Aligned.

/// c (16 x 8, f32) += a (16 x 16) * b (16 x 8). Lane l = 4 g + t holds: c[0], c[1] = (g, 2 t), (g, 2 t + 1); c[2], c[3]
/// the same of row g + 8; a[0] = (g, 2 t and next), a[1] = row g + 8, a[2] = columns + 8, a[3] = both;
/// b0 = (rows 2 t and next, column g), b1 = rows + 8. PTX ISA, "Matrix Fragments for mma.m16n8k16".
KILN_DEVICE void mma(bf16, f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
KILN_DEVICE void mma(f16, f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- transaction barriers in shared memory, 8 bytes each (sm_90)
//
// A barrier's phase ends when its count of arrivals and all announced bytes have come; the next begins at once. Waiting
// for parity p returns when the phase of parity p has ended: the first phase has parity 0, so a wait for parity 1 on a
// fresh barrier returns at once.

KILN_DEVICE void transaction_barrier_init(u32 shared, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared), "r"(arrivals) : "memory");
}
/// After the inits, by the thread that made them, before the barrier (of the block or cluster) that publishes them.
KILN_DEVICE void publish_transaction_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
/// One arrival, and `bytes` more to wait for in this phase.
KILN_DEVICE void arrive_and_expect(u32 shared, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared), "r"(bytes) : "memory");
}
KILN_DEVICE void arrive(u32 shared) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared) : "memory");
}
/// One arrival on the barrier at the same address of block `rank` of the cluster.
KILN_DEVICE void arrive_at(u32 shared, u32 rank) {
  asm volatile(
      "{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r]; }" ::"r"(shared),
      "r"(rank)
      : "memory");
}
KILN_DEVICE void wait_for_parity(u32 shared, u32 parity) {
  u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared), "r"(parity)
                 : "memory");
  } while (done == 0);
}

// ---- tensor memory accelerator (sm_90): boxes between a tensor of 4 dims in global memory and shared memory
//
// A TensorMap describes tensor, box and swizzle (backends/cuda/launch_record.h); c0 is the coordinate along the adjacent
// dim. Elements of a box outside the tensor are read as 0 and not written. The box is in shared memory row by row,
// 128-byte rows of the adjacent dim; with the 128-byte swizzle the 16-byte chunk c of row r stands at chunk c ^ (r & 7).
// Boxes start at a multiple of 1024 then.

struct alignas(64) TensorMap {
  u64 opaque[16];
};

/// By one thread. The box's bytes (those outside of the tensor too) count for the transaction barrier.
KILN_DEVICE void tma_load(u32 to, const TensorMap& map, u32 barrier, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
/// The same into every block of the cluster whose bit is in `blocks`, at the same addresses, for each one's own barrier.
KILN_DEVICE void tma_load_multicast(u32 to, const TensorMap& map, u32 barrier, i32 c0, i32 c1, i32 c2, i32 c3,
                                    u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(blocks)
      : "memory");
}
/// By one thread, after fence_shared_for_tma() by the writers and a barrier. Joins the thread's open group of stores.
KILN_DEVICE void tma_store(const TensorMap& map, u32 from, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
KILN_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until at most `pending` of the thread's groups still have to read their shared memory.
template <int pending>
KILN_DEVICE void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
/// Until at most `pending` of the thread's groups are unfinished.
template <int pending>
KILN_DEVICE void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}
/// What the thread wrote to shared memory is seen by tma_store and wgmma that start later.
KILN_DEVICE void fence_shared_for_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters (sm_90)

/// All threads of all blocks of the cluster meet, converged or not.
KILN_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// ---- registers (sm_90a): warpgroups give up or get registers. Aligned over the warpgroup.

template <int registers>
KILN_DEVICE void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
KILN_DEVICE void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// ---- tensor cores of a warpgroup (sm_90a). Aligned over the warpgroup.
//
// Operands are in shared memory, swizzled by 128 bytes, and named by descriptors:
//   k-major (rows of 64 elements along k, as tma_load leaves a box of 64 along k): descriptor_k_major; 16 further along k
//     is + 2; groups of 8 rows are 1024 bytes apart.
//   m-major (or n-major; rows of 64 elements along m, one row for each k): descriptor_mn_major; 16 further along k is
//     + 128; the next 64 along m or n are `slab` bytes further.

KILN_DEVICE u64 descriptor_k_major(u32 shared) {
  return (static_cast<u64>(shared & 0x3ffffu) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
KILN_DEVICE u64 descriptor_mn_major(u32 shared, u32 slab) {
  return (static_cast<u64>(shared & 0x3ffffu) >> 4) | (static_cast<u64>(slab >> 4) << 16) | (64ull << 32) |
         (1ull << 62);
}
/// Before the first wgmma, and whenever registers of d, or of a, were touched since the last wait.
KILN_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KILN_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most `pending` groups are unfinished: operands of the others may be overwritten, and their d be read.
template <int pending>
KILN_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
/// The compiler may not move the use of a register across: around fence and wait for every register of d, and of a.
template <int n>
KILN_DEVICE void pin(f32 (&d)[n]) {
  KILN_UNROLL for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int n>
KILN_DEVICE void pin(u32 (&a)[n]) {
  KILN_UNROLL for (int i = 0; i < n; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// wgmma<m_major_a, n_major_b>(T{}, d, a, b, accumulate): d (64 x N, f32) = a (64 x 16) * b (16 x N) + (accumulate ? d : 0),
// N = 2 * the length of d. Asynchronous; those of one warpgroup with the same d happen in order. Warp w and lane
// 4 g + t hold of the result rows 16 w + g (d[4 j], d[4 j + 1]) and 16 w + g + 8 (d[4 j + 2], d[4 j + 3]), columns
// 8 j + 2 t and the next.
//
// wgmma<n_major_b>(T{}, d, a, b, accumulate): the same, a being in registers as mma's is: warp w has rows 16 w to 16 w + 15.
#define KILN_P0                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KILN_P1                                                                      \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KILN_P2                                                                      \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define KILN_P3                                                                                  \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define KILN_D0(d)                                                                                            \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
      "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),  \
      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
      "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define KILN_D1(d)                                                                                                     \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), \
      "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),          \
      "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),          \
      "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define KILN_D2(d)                                                                                                     \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), \
      "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]),          \
      "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]),          \
      "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define KILN_D3(d)                                                                                                    \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),         \
      "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), \
      "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
      "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define KILN_LIST2(a, b) a, b
#define KILN_LIST3(a, b, c) a, b, c
#define KILN_LIST4(a, b, c, d) a, b, c, d
// I0 to I6: the numbers of the asm operands that follow d.
#define KILN_WGMMA(T, NAME, N, REGISTERS, OPERANDS, I0, I1, I2, I3, I4, I5, I6)                                        \
  template <bool m_major_a, bool n_major_b>                                                                            \
  KILN_DEVICE void wgmma(T, f32(&d)[N / 2], u64 a, u64 b, u32 accumulate) {                                            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #I2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME    \
                 "." NAME " {" REGISTERS "}, %" #I0 ", %" #I1 ", p, 1, 1, %" #I3 ", %" #I4 "; }"                       \
                 : OPERANDS                                                                                            \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(m_major_a ? 1 : 0), "n"(n_major_b ? 1 : 0));                   \
  }                                                                                                                    \
  template <bool n_major_b>                                                                                            \
  KILN_DEVICE void wgmma(T, f32(&d)[N / 2], const u32(&a)[4], u64 b, u32 accumulate) {                                 \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #I5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME    \
                 "." NAME " {" REGISTERS "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", p, 1, 1, %" #I6 "; }" \
                 : OPERANDS                                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(n_major_b ? 1 : 0));       \
  }
#define KILN_WGMMA_OF(T, NAME)                                                                                        \
  KILN_WGMMA(T, NAME, 64, KILN_P0, KILN_D0(d), 32, 33, 34, 35, 36, 37, 38)                                            \
  KILN_WGMMA(T, NAME, 128, KILN_P0 ", " KILN_P1, KILN_LIST2(KILN_D0(d), KILN_D1(d)), 64, 65, 66, 67, 68, 69, 70)      \
  KILN_WGMMA(T, NAME, 192, KILN_P0 ", " KILN_P1 ", " KILN_P2, KILN_LIST3(KILN_D0(d), KILN_D1(d), KILN_D2(d)), 96, 97, \
             98, 99, 100, 101, 102)                                                                                   \
  KILN_WGMMA(T, NAME, 256, KILN_P0 ", " KILN_P1 ", " KILN_P2 ", " KILN_P3,                                            \
             KILN_LIST4(KILN_D0(d), KILN_D1(d), KILN_D2(d), KILN_D3(d)), 128, 129, 130, 131, 132, 133, 134)
KILN_WGMMA_OF(bf16, "bf16")
KILN_WGMMA_OF(f16, "f16")
#undef KILN_WGMMA_OF
#undef KILN_WGMMA

}  // namespace kiln
