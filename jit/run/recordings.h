#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>

#include "backends/device.h"

namespace kiln {

/// A program's launches, recorded over addresses that it was called with before: steps of a training come back to the same
/// ones, and a recording is put on a queue at the price of little more than one launch.
///
/// Threading: any thread; callers take turns.
class Recordings {
 public:
  struct Counts {
    uint64_t made = 0, replayed = 0;
    std::string refusal;  // why none are made any more; empty where they are
  };

  /// Of a program of so many launches.
  explicit Recordings(size_t launches);

  /// Puts the launches on the queue: replayed, where they were recorded over these addresses; by `put`, which puts them on the queue
  /// that it is given, on the first call with them; and recorded by it on the second.
  Status put(Device& device, Queue& queue, std::span<const void* const> addresses,
             const std::function<Status(Queue&)>& put);

  Counts counts() const;

 private:
  struct Entry {
    std::unique_ptr<Recording> recording;  // null: met once
    uint64_t last_put = 0;
  };
  Entry* find_or_remember(const std::string& addresses);

  const size_t m_capacity;  // entries
  mutable std::mutex m_mutex;
  std::unordered_map<std::string, Entry> m_entries;  // by the bytes of the addresses
  uint64_t m_puts = 0;
  Counts m_counts;
};

}  // namespace kiln
