#include "jit/worker/buffer_arenas.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>

#include "base/memfd.h"

namespace kiln {
namespace {

void punch(const UniqueFd& arena, uint64_t begin) {
  constexpr int k_mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  fallocate(arena.get(), k_mode, static_cast<off_t>(begin), static_cast<off_t>(BufferArenas::k_bytes - begin));
}

/// Locks belong to open files, which a fork shares: each holder opens the arena for itself.
UniqueFd locked(const UniqueFd& arena) {
  UniqueFd own(open(("/proc/self/fd/" + std::to_string(arena.get())).c_str(), O_RDWR | O_CLOEXEC));
  if (own && flock(own.get(), LOCK_EX | LOCK_NB) != 0) own.reset();
  return own;
}

}  // namespace

BufferArenas::BufferArenas() {
  for (size_t i = 0; i < k_arenas; ++i) {
    auto arena = make_memfd("kiln-buffers");
    if (!arena.ok() || ftruncate(arena->get(), static_cast<off_t>(k_bytes)) != 0) return;
    if (fcntl(arena->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return;
    m_arenas.push_back(std::move(*arena));
  }
}

UniqueFd BufferArenas::take() const {
  for (const UniqueFd& arena : m_arenas) {
    if (UniqueFd own = locked(arena); own) return own;
  }
  return {};
}

void BufferArenas::release() const {
  for (const UniqueFd& arena : m_arenas) {
    if (const UniqueFd own = locked(arena); own) punch(own, 0);
  }
}

void BufferArenas::trim(const UniqueFd& arena) { punch(arena, k_kept_bytes); }

}  // namespace kiln
