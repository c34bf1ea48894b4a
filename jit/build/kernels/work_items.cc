#include "jit/build/kernels/work_items.h"

#include <algorithm>
#include <chrono>

namespace kiln {

namespace {

constexpr std::chrono::milliseconds k_look_after(10);

}  // namespace

void WorkItems::run(const Work& work) {
  if (m_count == 0) return;
  m_work = &work;
  m_caller = std::this_thread::get_id();
  m_running = 1;
  std::jthread looking([this](const std::stop_token& stop) { look_again(stop); });
  if (const auto first = next()) work(*first, *this);
  stop();  // nobody begins a thread any more
  looking = {};
  for (std::jthread& thread : m_begun) thread.join();
}

std::optional<size_t> WorkItems::next() {
  const std::scoped_lock lock(m_mutex);
  const bool is_one_too_many = m_running > std::max<size_t>(m_threads(), 1);
  if (m_next == m_count || (is_one_too_many && std::this_thread::get_id() != m_caller)) {
    --m_running;
    return std::nullopt;
  }
  const size_t item = m_next++;
  begin_threads();
  return item;
}

void WorkItems::stop() {
  const std::scoped_lock lock(m_mutex);
  m_next = m_count;
}

/// Until there is nothing left to begin a thread for.
void WorkItems::look_again(const std::stop_token& stop) {
  std::unique_lock lock(m_mutex);
  while (m_next < m_count && !stop.stop_requested()) {
    m_stopped.wait_for(lock, stop, k_look_after, [] { return false; });
    begin_threads();
  }
}

/// With the mutex held.
void WorkItems::begin_threads() {
  while (m_next < m_count && m_running < m_threads()) {
    m_begun.emplace_back([this, item = m_next++] { (*m_work)(item, *this); });
    ++m_running;
  }
}

}  // namespace kiln
