#pragma once

#include <algorithm>
#include <list>
#include <memory>
#include <utility>

#include "base/digest.h"
#include "base/limits.h"
#include "jit/build/build.h"

namespace kiln {

/// Results that the disk had no room for, so that the next one who asks need not wait for the compiler. Bounded; what
/// came first goes first. Threading: one thread.
class UnkeptResults {
 public:
  std::shared_ptr<BuildResult> find(const Digest& key) const {
    const auto found = place_of(key);
    return found == m_results.end() ? nullptr : found->second;
  }

  void clear() { m_results.clear(); }

  /// Keeps `result` in place of what was there under `key`; null forgets that.
  void put(const Digest& key, std::shared_ptr<BuildResult> result) {
    if (const auto found = place_of(key); found != m_results.end()) m_results.erase(found);
    if (result) m_results.emplace_back(key, std::move(result));
    size_t bytes = 0;
    for (const auto& [each, kept] : m_results) bytes += bytes_of(*kept);
    for (; bytes > limits::k_unkept_bytes; m_results.pop_front()) bytes -= bytes_of(*m_results.front().second);
  }

 private:
  using Results = std::list<std::pair<Digest, std::shared_ptr<BuildResult>>>;

  Results::const_iterator place_of(const Digest& key) const {
    return std::find_if(m_results.begin(), m_results.end(), [&](const auto& entry) { return entry.first == key; });
  }

  static size_t bytes_of(const BuildResult& result) {
    size_t bytes = result.report.size();
    for (const BuiltArtifact& artifact : result.artifacts) bytes += artifact.payload.size();
    return bytes;
  }

  Results m_results;
};

}  // namespace kiln
