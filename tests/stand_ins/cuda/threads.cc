#include <cmath>

#include "backends/reference/number.h"
#include "tests/stand_ins/cuda/device.h"
#include "tests/stand_ins/cuda/machine.h"

/// Where a thread is, and how threads meet.
using kiln::cuda_emulator::Block;
using kiln::cuda_emulator::Knowledge;
using kiln::cuda_emulator::Machine;
using kiln::cuda_emulator::Thread;
using kiln::cuda_emulator::Warp;

namespace {

constexpr uint32_t k_all_lanes = 0xFFFFFFFF;

Machine& machine() { return Machine::current(); }

kiln::cuda_emulator::Barrier& part_barrier(uint32_t id, uint32_t threads) {
  if (id == 0 || id > 15 || threads % 32 != 0) machine().fail("names a barrier that does not exist");
  return machine().self().block->barriers[id];
}

}  // namespace

uint32_t kiln_emulated_thread_index() { return machine().self().index; }
uint32_t kiln_emulated_block_index() { return machine().self().block->index; }
uint32_t kiln_emulated_block_count() { return machine().shape().blocks; }
uint32_t kiln_emulated_cluster_rank() { return machine().self().block->rank; }

uint8_t* kiln_emulated_shared_memory() { return machine().self().block->shared + kiln::cuda_emulator::k_shared_start; }

uint32_t kiln_emulated_shared_address(const void* pointer) {
  const Block& block = *machine().self().block;
  const auto offset = static_cast<const uint8_t*>(pointer) - block.shared;
  if (offset < 0 || static_cast<size_t>(offset) > block.shadow->size())
    machine().fail("takes the shared address of what is not shared");
  return static_cast<uint32_t>(offset);
}

float kiln_emulated_fmaf(float a, float b, float c) { return std::fma(a, b, c); }
double kiln_emulated_fma(double a, double b, double c) { return std::fma(a, b, c); }

float kiln_emulated_of_f16(uint16_t bits) {
  return static_cast<float>(kiln::load_number(kiln::DType::f16, &bits, 0).real);
}
uint16_t kiln_emulated_to_f16(float x) {
  uint16_t bits = 0;
  kiln::store_number(kiln::DType::f16, &bits, 0, {.real = x});
  return bits;
}
uint16_t kiln_emulated_to_bf16(float x) {
  uint16_t bits = 0;
  kiln::store_number(kiln::DType::bf16, &bits, 0, {.real = x});
  return bits;
}

void kiln_emulated_atomic_or(uint32_t* word, uint32_t bits) { *machine().atomic(word) |= bits; }

void kiln_emulated_assertion_failed(const char* assertion) {
  machine().fail(std::string("assertion failed: ") + assertion);
}

void kiln_emulated_block_barrier() {
  Block& block = *machine().self().block;
  machine().meet(block.barriers[0], machine().shape().threads, "the block's barrier", 0);
}

void kiln_emulated_part_barrier(uint32_t id, uint32_t threads) {
  machine().meet(part_barrier(id, threads), threads, "barrier", id);
}
void kiln_emulated_part_arrive(uint32_t id, uint32_t threads) {
  machine().arrive(part_barrier(id, threads), threads, "barrier", id);
}

void kiln_emulated_warp_barrier() {
  machine().converge("the warp's barrier", k_all_lanes, nullptr, [](Warp& warp) {
    Knowledge gathered;
    for (Thread* lane : warp.lanes) {
      if (lane != nullptr) lane->release_to(gathered);
    }
    for (Thread* lane : warp.lanes) {
      if (lane != nullptr) lane->knowledge.join(gathered);
    }
  });
}

void kiln_emulated_cluster_barrier() { machine().cluster_barrier(); }

unsigned long long kiln_emulated_shuffle_xor(unsigned long long value, uint32_t mask) {
  struct Exchange {
    uint64_t value, result;
  } mine{value, 0};
  if (mask > 31) machine().fail("shuffles with a lane that does not exist");
  machine().converge("a shuffle", k_all_lanes, &mine, [mask](Warp& warp) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      auto* to = static_cast<Exchange*>(warp.collective.arguments[lane]);
      const auto* from = static_cast<const Exchange*>(warp.collective.arguments[lane ^ mask]);
      if (warp.lanes[lane] != nullptr && warp.lanes[lane ^ mask] != nullptr) to->result = from->value;
    }
  });
  return mine.result;
}

void kiln_emulated_barrier_init(uint32_t shared, uint32_t arrivals) {
  Block& block = *machine().self().block;
  if (shared % 8 != 0 || arrivals == 0) machine().fail("makes a transaction barrier that is misaligned or counts to 0");
  machine().touch_shared(block, shared, 8, /*write=*/true, machine().self().toucher());
  block.transaction_barriers[shared] = {.arrivals = arrivals, .missing = arrivals, .agent = machine().new_agent()};
}

void kiln_emulated_barrier_arrive(uint32_t shared, uint32_t rank, uint32_t bytes) {
  machine().perhaps_yield();
  auto& barrier = machine().transaction_barrier(shared, machine().block_of_rank(rank));
  if (barrier.missing == 0) machine().fail("arrives at a transaction barrier more often than it counts");
  barrier.bytes += bytes;
  --barrier.missing;
  machine().self().release_to(barrier.gathered);
  machine().advance(barrier);
}

void kiln_emulated_barrier_wait(uint32_t shared, uint32_t parity) {
  machine().perhaps_yield();
  auto& barrier = machine().transaction_barrier(shared, *machine().self().block);
  if (parity > 1) machine().fail("waits for a parity that is neither 0 nor 1");
  while (barrier.phase % 2 == parity) {
    barrier.waiting.push_back(&machine().self());
    machine().wait("the transaction barrier at", shared);
  }
  machine().self().knowledge.join(barrier.completed);
}

void kiln_emulated_fence_proxies() { machine().self().knowledge.fence_proxies(); }
