#include "jit/worker/buffer_arenas.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>

#include "base/memfd.h"

namespace kiln {

BufferArenas::BufferArenas() {
  for (size_t i = 0; i < k_arenas; ++i) {
    auto file = make_memfd("kiln-buffers");
    if (!file.ok() || ftruncate(file->get(), static_cast<off_t>(k_bytes)) != 0) return;
    if (fcntl(file->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return;
    m_arenas.push_back(std::make_unique<Arena>(std::move(*file)));
  }
}

/// Locks belong to files that were opened, which a fork shares.
BufferArenas BufferArenas::reopened() const {
  std::vector<std::unique_ptr<Arena>> own;
  for (const auto& arena : m_arenas) {
    UniqueFd file(open(("/proc/self/fd/" + std::to_string(arena->file.get())).c_str(), O_RDWR | O_CLOEXEC));
    if (file) own.push_back(std::make_unique<Arena>(std::move(file)));
  }
  return BufferArenas(std::move(own));
}

BufferArenas::Held BufferArenas::take() const {
  for (const auto& arena : m_arenas) {
    if (arena->is_held.exchange(true)) continue;
    if (flock(arena->file.get(), LOCK_EX | LOCK_NB) == 0) return Held(*arena);
    arena->is_held = false;
  }
  return {};
}

void BufferArenas::release() const {
  std::vector<Held> free;
  for (Held each = take(); each; each = take()) {
    each.release_pages(0);
    free.push_back(std::move(each));
  }
}

BufferArenas::Held::~Held() {
  if (m_arena == nullptr) return;
  flock(m_arena->file.get(), LOCK_UN);
  m_arena->is_held = false;
}

void BufferArenas::Held::release_pages(uint64_t begin) const {
  constexpr int k_mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  fallocate(m_arena->file.get(), k_mode, static_cast<off_t>(begin), static_cast<off_t>(k_bytes - begin));
}

}  // namespace kiln
