#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>

#include "base/fd.h"
#include "base/limits.h"

namespace kiln {

/// Keeps from asking what does not answer: for a while after a failure, twice as long after each further one.
/// Threading: any thread.
class Breaker {
 public:
  bool is_open(Deadline now) const {
    const std::scoped_lock lock(m_mutex);
    return now < m_until;
  }
  void fail(Deadline now) {
    const std::scoped_lock lock(m_mutex);
    m_until = now + std::chrono::milliseconds(m_rest_ms);
    m_rest_ms = std::min(m_rest_ms * 2, limits::k_fleet_rest_max_ms);
  }
  void succeed() {
    const std::scoped_lock lock(m_mutex);
    m_until = {};
    m_rest_ms = limits::k_fleet_rest_ms;
  }

 private:
  mutable std::mutex m_mutex;
  Deadline m_until{};
  uint64_t m_rest_ms = limits::k_fleet_rest_ms;
};

}  // namespace kiln
