#include "jit/worker/thread_budget.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace kiln {

static_assert(std::atomic<size_t>::is_always_lock_free, "processes share it");

ThreadBudget::ThreadBudget(size_t threads) : m_threads(threads) {
  void* memory = mmap(nullptr, sizeof *m_builds, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) m_builds = new (memory) std::atomic<size_t>(0);
}

ThreadBudget::~ThreadBudget() {
  if (m_builds != nullptr) munmap(m_builds, sizeof *m_builds);
}

void ThreadBudget::begin_build() {
  if (m_builds != nullptr) m_builds->fetch_add(1, std::memory_order_relaxed);
}

void ThreadBudget::end_build() {
  if (m_builds != nullptr) m_builds->fetch_sub(1, std::memory_order_relaxed);
}

size_t ThreadBudget::share() const {
  if (m_builds == nullptr) return 1;
  const size_t builds = std::max<size_t>(m_builds->load(std::memory_order_relaxed), 1);
  return std::max<size_t>(m_threads / builds, 1);
}

}  // namespace kiln
