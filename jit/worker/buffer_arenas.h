#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace kiln {

/// Memory for candidates' buffers that outlives the processes which use it: pages that one build made serve the next,
/// since fresh ones cost more than most candidates run. Made by the zygote, inherited by its compile workers.
///
/// An arena is a memfd without pages at first. Who takes one locks it; of a process that was killed the lock is gone once
/// the last duplicate of its descriptor and the last mapping are.
/// Threading: take() any thread. Bounds: k_arenas, of which each keeps at most k_kept_bytes once nobody holds it.
class BufferArenas {
  struct Arena {
    UniqueFd file;
    std::atomic<bool> is_held = false;  // by this process: the lock is one of files that were opened, not of threads
  };

 public:
  static constexpr uint64_t k_bytes = uint64_t{1} << 40;       // of address space that an arena has
  static constexpr uint64_t k_kept_bytes = uint64_t{1} << 30;  // of memory

  /// An arena in use, until this ends; by then nothing maps it any more. The arenas outlive it.
  class Held {
   public:
    Held() = default;
    Held(Held&& other) noexcept : m_arena(std::exchange(other.m_arena, nullptr)) {}
    Held& operator=(Held&& other) noexcept {
      std::swap(m_arena, other.m_arena);
      return *this;
    }
    ~Held();

    explicit operator bool() const { return m_arena != nullptr; }
    /// Of k_bytes bytes, which can neither shrink nor grow and hold anything.
    const UniqueFd& file() const { return m_arena->file; }
    /// Lets go of the pages from `begin` on.
    void release_pages(uint64_t begin) const;

   private:
    friend class BufferArenas;
    explicit Held(Arena& arena) : m_arena(&arena) {}
    Arena* m_arena = nullptr;
  };

  /// None where the system refuses: then there is nothing to take.
  BufferArenas();
  /// The same arenas for a process that was forked from the one that made them: what it takes, others do not.
  BufferArenas reopened() const;

  /// An arena that nobody holds; none when all are held.
  Held take() const;
  /// Lets go of all pages of arenas that nobody holds.
  void release() const;

 private:
  static constexpr size_t k_arenas = 8;  // a kernel is tried on each of a few threads, in each of a few workers
  explicit BufferArenas(std::vector<std::unique_ptr<Arena>> arenas) : m_arenas(std::move(arenas)) {}

  std::vector<std::unique_ptr<Arena>> m_arenas;
};

}  // namespace kiln
