#include "jit/run/in_place.h"

#include <algorithm>

namespace kiln {

void InPlace::add(std::span<const DataFlow::Access> launch, std::span<const Pair> allowed) {
  using enum DataFlow::Place;
  const uint32_t now = m_launches++;
  for (const DataFlow::Access& access : launch) {
    if (access.place == input) m_last_reads[access.index] = now;
    if (access.place == output && access.role != DataFlow::Role::read) m_first_writes.try_emplace(access.index, now);
  }
  const auto is_allowed = [&](uint32_t written, uint32_t read) {
    return std::ranges::any_of(allowed, [&](const Pair& each) { return each.output == written && each.input == read; });
  };
  for (const Pair& pair : allowed) {
    const DataFlow::Access &written = launch[pair.output], &read = launch[pair.input];
    if (written.place != output || read.place != input || m_first_writes[written.index] != now) continue;
    // The same input may come in twice.
    bool all = true;
    for (uint32_t i = 0; i < launch.size(); ++i) {
      if (launch[i].place == input && launch[i].index == read.index) all = all && is_allowed(pair.output, i);
    }
    if (all) m_at_once.emplace(written.index, read.index);
  }
}

bool InPlace::allows(uint32_t output, uint32_t input) const {
  const auto written = m_first_writes.find(output);
  if (written == m_first_writes.end()) return false;
  const auto read = m_last_reads.find(input);
  if (read == m_last_reads.end() || read->second < written->second) return true;
  return read->second == written->second && m_at_once.contains({output, input});
}

}  // namespace kiln
