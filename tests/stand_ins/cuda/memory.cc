#include <cassert>

#include <fmt/format.h>

#include "tests/stand_ins/cuda/machine.h"

/// What the machine knows of memory: windows of shared memory, buffers in global memory, registers in fibers' stacks.
namespace kiln::cuda_emulator {

uint8_t* Machine::shared(uint32_t address, size_t size, Block* block) {
  Block& where = block == nullptr ? *self().block : *block;
  if (address < k_shared_start || address + size > where.shadow->size()) {
    fail(fmt::format("uses shared memory at {} to {}; the launch has {} to {}", address, address + size, k_shared_start,
                     where.shadow->size()));
  }
  return where.shared + address;
}

void Machine::touch_shared(Block& block, uint32_t address, size_t size, bool write, const Toucher& toucher) {
  shared(address, size, &block);
  const char* problem =
      write ? block.shadow->write(address, size, toucher) : block.shadow->read(address, size, toucher);
  if (problem != nullptr) {
    fail(fmt::format("{} {} bytes of shared memory at {}: {}", write ? "writes" : "reads", size, address, problem));
  }
}

void Machine::begin(Operation& operation, Block& block, uint32_t address, uint32_t size, bool write,
                    const Toucher& toucher) {
  shared(address, size, &block);
  const char* problem =
      write ? block.shadow->begin_write(address, size, toucher) : block.shadow->begin_read(address, size, toucher);
  if (problem != nullptr) {
    fail(fmt::format("starts an asynchronous {} of {} bytes of shared memory at {}: {}", write ? "write" : "read", size,
                     address, problem));
  }
  (write ? operation.writes : operation.reads).push_back({&block, address, size});
}

void Machine::touch_global(const void* address, size_t size, bool write, Proxy proxy) {
  const auto* first = static_cast<const uint8_t*>(address);
  for (Buffer& buffer : m_buffers) {
    if (first < buffer.what.data || first >= buffer.what.data + buffer.what.size_bytes) continue;
    const auto offset = static_cast<size_t>(first - buffer.what.data);
    if (offset + size > buffer.what.size_bytes) break;
    if (!buffer.what.is_watched) return;
    if (write && !buffer.what.writable) fail(fmt::format("writes to {}, which is only read", buffer.what.name));
    const Toucher toucher = self().toucher(proxy);
    const char* problem =
        write ? buffer.shadow.write(offset, size, toucher) : buffer.shadow.read(offset, size, toucher);
    if (problem != nullptr) {
      fail(fmt::format("{} {} bytes of {} at {}: {}", write ? "writes" : "reads", size, buffer.what.name, offset,
                       problem));
    }
    return;
  }
  std::string nearest = "there is none";
  int64_t distance = INT64_MAX;
  for (const Buffer& buffer : m_buffers) {
    const int64_t offset = first - buffer.what.data;
    const int64_t away = offset < 0 ? -offset : offset - static_cast<int64_t>(buffer.what.size_bytes);
    if (away >= distance) continue;
    distance = away;
    nearest = fmt::format("{} has {} bytes, this is byte {}", buffer.what.name, buffer.what.size_bytes, offset);
  }
  fail(fmt::format("{} {} bytes outside of every buffer: {}", write ? "writes" : "reads", size, nearest));
}

uint32_t* Machine::atomic(uint32_t* word) {
  const auto* first = reinterpret_cast<const uint8_t*>(word);
  for (const Buffer& buffer : m_buffers) {
    if (buffer.what.writable && first >= buffer.what.data &&
        first + sizeof(*word) <= buffer.what.data + buffer.what.size_bytes) {
      return word;
    }
  }
  fail("changes a word atomically that lies outside of every buffer that may be written");
}

void Machine::touch(const void* address, size_t size, bool write) {
  Thread& thread = self();
  const auto* first = static_cast<const uint8_t*>(address);
  if ((size & (size - 1)) == 0 && reinterpret_cast<uintptr_t>(address) % size != 0) {
    fail(fmt::format("{} {} bytes at a misaligned address", write ? "writes" : "reads", size));
  }
  if (m_stacks.find(address) < m_stacks.count()) {
    for (ProductRegisters& registers : thread.product_registers) {
      if (first + size <= registers.first || first >= registers.first + registers.size) continue;
      if (registers.is_factor && !write) continue;
      if (registers.pending > 0) {
        fail(registers.is_factor ? "changes a register that an unfinished wgmma reads"
                                 : "uses a register that an unfinished wgmma computes");
      }
      registers.touched_since_fence = true;
    }
    return;
  }
  for (Block& block : m_blocks) {
    if (first < block.shared || first >= block.shared + block.shadow->size()) continue;
    if (&block != thread.block) fail("uses the shared memory of another block");
    touch_shared(block, static_cast<uint32_t>(first - block.shared), size, write, thread.toucher());
    return;
  }
  if (!write && first >= m_constants.data() && first + size <= m_constants.data() + m_constants.size()) return;
  touch_global(address, size, write);
}

TransactionBarrier& Machine::transaction_barrier(uint32_t address, Block& block, Proxy proxy) {
  if (block.alive == 0) fail(fmt::format("signals block {}, which has left", block.index));
  const auto found = block.transaction_barriers.find(address);
  if (found == block.transaction_barriers.end()) {
    fail(fmt::format("uses {} in shared memory as a transaction barrier: none was made there", address));
  }
  touch_shared(block, address, 8, /*write=*/false, self().toucher(proxy));
  return found->second;
}

void Machine::advance(TransactionBarrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  barrier.completed = barrier.gathered;
  for (Thread* thread : barrier.waiting) wake(*thread);
  barrier.waiting.clear();
}

}  // namespace kiln::cuda_emulator
