#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/limits.h"

namespace kiln {

/// The last things that happened, for whoever asks why: a bounded ring, kept whatever the log level.
/// Threading: one thread.
class FlightRecorder {
 public:
  struct Event {
    uint64_t number = 0;  // counts on: a gap is what fell out of the ring
    int64_t unix_ms = 0;
    std::string_view kind;  // a literal
    std::string text;
  };

  template <typename... Args>
  void record(std::string_view kind, fmt::format_string<Args...> format, Args&&... args) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    m_events.push_back({m_next++, std::chrono::duration_cast<std::chrono::milliseconds>(now).count(), kind,
                        fmt::format(format, std::forward<Args>(args)...)});
    if (m_events.size() > limits::k_flight_events) m_events.pop_front();
  }

  const std::deque<Event>& events() const { return m_events; }

 private:
  std::deque<Event> m_events;
  uint64_t m_next = 1;
};

}  // namespace kiln
