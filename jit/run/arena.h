#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kiln {

/// Scratch memory of calls in flight, from a multiple of huge pages on, contents undefined. A released block is kept for the
/// next call, because fresh pages cost more than the kernels that touch them; but no more blocks than calls were in flight at
/// once among the last ones. Threading: any thread at once.
/// After fork the child must not release blocks acquired before it (it never does: a call in flight belongs
/// to a thread that the child does not have).
class ArenaPool {
 public:
  struct Release {
    ArenaPool* pool;
    size_t bytes;
    void operator()(uint8_t* memory) const { pool->release(memory, bytes); }
  };
  using Block = std::unique_ptr<uint8_t[], Release>;

  /// The pool of this process, never destroyed.
  static ArenaPool& shared();

  /// Null when the system has no memory left. The smallest kept block that fits is handed out; where none does, a new one
  /// takes the place of the largest.
  Block acquire(size_t bytes);

 private:
  friend struct Release;
  void release(uint8_t* memory, size_t bytes);

  struct State;
  ArenaPool();
  State* m_state;
};

/// Asks for huge pages behind what a program is about to write, where it is large: the framework's fresh memory comes in
/// small ones, and faulting them in costs four times what writing them does. A hint: contents and owner stay.
void advise_huge_pages(void* memory, size_t bytes);

}  // namespace kiln
