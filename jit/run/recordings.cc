#include "jit/run/recordings.h"

#include <algorithm>

#include "base/limits.h"

namespace kiln {

Recordings::Recordings(size_t launches)
    : m_capacity(std::max<size_t>(limits::k_recorded_launches / std::max<size_t>(launches, 1), 1)) {}

/// Null for addresses that are new. Where there are too many, those go that were put longest ago.
Recordings::Entry* Recordings::find_or_remember(const std::string& addresses) {
  if (const auto found = m_entries.find(addresses); found != m_entries.end()) return &found->second;
  if (m_entries.size() >= m_capacity) {
    m_entries.erase(std::ranges::min_element(m_entries, {}, [](const auto& entry) { return entry.second.last_put; }));
  }
  m_entries[addresses].last_put = m_puts;
  return nullptr;
}

Status Recordings::put(Device& device, Queue& queue, std::span<const void* const> addresses,
                       const std::function<Status(Queue&)>& put) {
  const std::scoped_lock lock(m_mutex);
  if (!m_counts.refusal.empty()) return put(queue);
  ++m_puts;
  const auto bytes = std::as_bytes(addresses);
  Entry* const entry = find_or_remember({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (entry == nullptr) return put(queue);
  entry->last_put = m_puts;
  if (!entry->recording) {
    auto recording = device.record(put);
    if (!recording.ok()) {
      m_counts.refusal = recording.status().message();
      m_entries.clear();
      return put(queue);
    }
    entry->recording = std::move(*recording);
    ++m_counts.made;
  }
  ++m_counts.replayed;
  return entry->recording->replay(queue);
}

Recordings::Counts Recordings::counts() const {
  const std::scoped_lock lock(m_mutex);
  return m_counts;
}

}  // namespace kiln
