#pragma once

/// What the emulated prelude (prelude_on_host.h) calls: the device's instructions. Without headers, for kernels have none.
/// Meanings: backends/cuda/compile/prelude.cuh; what they promise about time and visibility: the PTX ISA. Functions of a
/// warp return when all its lanes have come.
extern "C" {

#pragma GCC visibility push(default)

unsigned kiln_emulated_thread_index();
unsigned kiln_emulated_block_index();
unsigned kiln_emulated_block_count();
unsigned kiln_emulated_cluster_rank();
unsigned char* kiln_emulated_shared_memory();
unsigned kiln_emulated_shared_address(const void* pointer);
float kiln_emulated_fmaf(float a, float b, float c);
double kiln_emulated_fma(double a, double b, double c);
float kiln_emulated_of_f16(unsigned short bits);
unsigned short kiln_emulated_to_f16(float x);
unsigned short kiln_emulated_to_bf16(float x);
void kiln_emulated_atomic_or(unsigned* word, unsigned bits);
[[noreturn]] void kiln_emulated_assertion_failed(const char* assertion);

void kiln_emulated_block_barrier();
void kiln_emulated_part_barrier(unsigned id, unsigned threads);
void kiln_emulated_part_arrive(unsigned id, unsigned threads);
void kiln_emulated_warp_barrier();
void kiln_emulated_cluster_barrier();
unsigned long long kiln_emulated_shuffle_xor(unsigned long long value, unsigned mask);

void kiln_emulated_copy16_async(unsigned shared, const void* from, unsigned bytes);
void kiln_emulated_commit_copies();
void kiln_emulated_wait_copies(unsigned pending);

void kiln_emulated_load_matrices(unsigned* registers, unsigned shared, bool transposed);
void kiln_emulated_store_matrices(unsigned shared, const unsigned* registers);
void kiln_emulated_mma(float* c, const unsigned* a, unsigned b0, unsigned b1, bool is_bf16);

void kiln_emulated_barrier_init(unsigned shared, unsigned arrivals);
void kiln_emulated_barrier_arrive(unsigned shared, unsigned rank, unsigned bytes);
void kiln_emulated_barrier_wait(unsigned shared, unsigned parity);

void kiln_emulated_tma_load(unsigned to, const void* map, unsigned barrier, const int* at, unsigned blocks);
void kiln_emulated_tma_store(const void* map, unsigned from, const int* at);
void kiln_emulated_commit_stores();
void kiln_emulated_wait_stores(unsigned pending);
void kiln_emulated_fence_proxies();

void kiln_emulated_wgmma_fence();
void kiln_emulated_wgmma_commit();
void kiln_emulated_wgmma_wait(unsigned pending);
/// The left factor is in `registers`, or, those being null, where `a` says.
void kiln_emulated_wgmma(float* d, unsigned n, const unsigned* registers, unsigned long long a, unsigned long long b,
                         unsigned accumulate, bool is_bf16, bool m_major_a, bool n_major_b);

#pragma GCC visibility pop
}
