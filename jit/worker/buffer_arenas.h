#pragma once

#include <cstdint>
#include <vector>

#include "base/fd.h"

namespace kiln {

/// Memory for candidates' buffers that outlives the processes which use it: pages that one build made serve the next,
/// since fresh ones cost more than most candidates run. Made by the zygote, inherited by its compile workers.
///
/// An arena is a memfd without pages at first. Who takes one holds it by a lock on its descriptor, which lasts until the
/// last duplicate and the last mapping are gone: those of a killed worker, too.
/// Threading: take() any thread. Bounds: k_arenas, of which each keeps at most k_kept_bytes once nobody holds it.
class BufferArenas {
 public:
  static constexpr uint64_t k_bytes = uint64_t{1} << 40;       // of address space that an arena has
  static constexpr uint64_t k_kept_bytes = uint64_t{1} << 30;  // of memory

  /// None where the system refuses: then there is nothing to take.
  BufferArenas();

  /// An arena that nobody holds: a descriptor of k_bytes bytes, which can neither shrink nor grow and hold anything. Invalid
  /// when all are held.
  UniqueFd take() const;
  /// Lets go of all pages of arenas that nobody holds.
  void release() const;
  /// Lets go of what the holder has touched beyond k_kept_bytes.
  static void trim(const UniqueFd& arena);

 private:
  static constexpr size_t k_arenas = 8;  // a kernel is tried on each of a few threads, in each of a few workers
  std::vector<UniqueFd> m_arenas;
};

}  // namespace kiln
