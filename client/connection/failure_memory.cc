#include "client/connection/failure_memory.h"

#include <algorithm>

#include "base/limits.h"
#include "base/process_mutex.h"

namespace kiln {

Status FailureMemory::in_force() const {
  const std::scoped_lock lock(process_mutex());
  return Clock::now() < m_until ? m_status : Status();
}

bool FailureMemory::is_silent() const {
  const std::scoped_lock lock(process_mutex());
  return m_kind == Kind::silent;
}

void FailureMemory::note(Kind kind, const Status& status) {
  const std::scoped_lock lock(process_mutex());
  m_next_ms = std::clamp(m_next_ms * 2, limits::k_daemon_backoff_ms, limits::k_daemon_backoff_max_ms);
  m_kind = kind;
  m_status = status;
  m_until = deadline_in(m_next_ms);
}

void FailureMemory::forget() {
  const std::scoped_lock lock(process_mutex());
  m_status = {};
  m_until = {};
  m_next_ms = 0;
}

}  // namespace kiln
