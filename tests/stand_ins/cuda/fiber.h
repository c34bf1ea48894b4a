#pragma once

#include <cstddef>
#include <cstdint>

namespace kiln::cuda_emulator {

/// Stacks for one fiber per thread of a block, kept for the next block. One mapping; pages are touched on first use.
class FiberStacks {
 public:
  static constexpr size_t k_stack_bytes = 128 << 10;

  explicit FiberStacks(size_t count);
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

  size_t count() const { return m_count; }
  uint8_t* stack(size_t index) { return m_base + index * k_stack_bytes; }
  /// Which stack an address lies in, or count().
  size_t find(const void* address) const {
    const auto offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(m_base);
    return offset < m_count * k_stack_bytes ? offset / k_stack_bytes : m_count;
  }

 private:
  size_t m_count;
  uint8_t* m_base;
};

/// A flow of control on its own stack. It runs from resume() until it suspends; it may be dropped while suspended,
/// which runs no destructors: what runs on it must own nothing.
class Fiber {
 public:
  using Entry = void (*)(void* argument);

  /// `entry` must not return: its last act is suspend().
  void prepare(uint8_t* stack, Entry entry, void* argument);
  void resume();
  void suspend();

 private:
  void* m_own = nullptr;     // the stack pointer while suspended
  void* m_caller = nullptr;  // whom to go back to
};

}  // namespace kiln::cuda_emulator
