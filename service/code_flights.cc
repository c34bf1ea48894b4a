#include "service/code_flights.h"

#include <algorithm>
#include <utility>

namespace kiln {

namespace {

/// How soon a build that waits for others learns that it is not wanted any more.
constexpr auto k_glance = std::chrono::milliseconds(50);

}  // namespace

CodeAnswer CodeFlights::claim(uint64_t build, std::span<const Digest> keys) {
  const std::scoped_lock lock(m_mutex);
  CodeAnswer answer;
  for (const Digest& key : keys) {
    const Flight& flight = m_flights.try_emplace(key, Flight{.build = build}).first->second;
    if (flight.is_made) {
      answer.found.push_back(flight.code);
    } else if (flight.build != build) {
      answer.elsewhere.push_back(key);
    }
  }
  return answer;
}

bool CodeFlights::is_elsewhere(uint64_t build, const Digest& key) const {
  const auto flight = m_flights.find(key);
  return flight != m_flights.end() && !flight->second.is_made && flight->second.build != build;
}

void CodeFlights::wait(uint64_t build, std::span<const Digest> keys, Deadline until,
                       const std::function<bool()>& is_over) {
  std::unique_lock lock(m_mutex);
  const auto flies = [&] {
    return std::ranges::any_of(keys, [&](const Digest& key) { return is_elsewhere(build, key); });
  };
  while (flies() && Clock::now() < until && !is_over()) m_changed.wait_for(lock, k_glance);
}

void CodeFlights::give(uint64_t build, std::vector<SuppliedCode> made) {
  {
    const std::scoped_lock lock(m_mutex);
    for (SuppliedCode& code : made) {
      const auto flight = m_flights.find(code.key);
      if (flight == m_flights.end() || flight->second.build != build || !code.is_proven) continue;
      flight->second.is_made = true;
      flight->second.code = std::move(code);
    }
  }
  m_changed.notify_all();
}

void CodeFlights::end(uint64_t build) {
  {
    const std::scoped_lock lock(m_mutex);
    std::erase_if(m_flights, [&](const auto& each) { return each.second.build == build; });
  }
  m_changed.notify_all();
}

}  // namespace kiln
