#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kiln {

/// What the daemon counts since it started. Adding one: an enum value and a row.
enum class Counter : uint8_t {
  connections,
  refused_peers,
  broken_peers,
  builds_asked,
  builds_joined,
  builds_refused,
  builds_done,
  builds_found,
  builds_supplied,
  builds_failed,
  builds_not_kept,
  workers_died,
  keys_quarantined,
  compilations,
  kernels_supplied,
  artifacts_published,
  commands,
  kernels_tuned,
  programs_not_judged,
  k_count
};

struct CounterRow {
  Counter counter;
  std::string_view name;
  std::string_view sentence;
};

inline constexpr std::array<CounterRow, static_cast<size_t>(Counter::k_count)> k_counter_rows = {{
    {Counter::connections, "connections", "Connections accepted."},
    {Counter::refused_peers, "refused_peers", "Connections refused: another user, or too many."},
    {Counter::broken_peers, "broken_peers", "Connections closed for what they sent, or did not send in time."},
    {Counter::builds_asked, "builds_asked", "Build requests."},
    {Counter::builds_joined, "builds_joined", "Build requests that joined a build in flight."},
    {Counter::builds_refused, "builds_refused", "Build requests refused: queue full, or key in quarantine."},
    {Counter::builds_done, "builds_done", "Builds published."},
    {Counter::builds_found, "builds_found", "Build requests whose programs the cache had by then."},
    {Counter::builds_supplied, "builds_supplied", "Builds whose programs the fleet's store had."},
    {Counter::builds_failed, "builds_failed", "Builds that failed."},
    {Counter::builds_not_kept, "builds_not_kept", "Builds answered from memory: the disk is full."},
    {Counter::workers_died, "workers_died", "Builds that ended with the death of their worker."},
    {Counter::keys_quarantined, "keys_quarantined", "Keys refused for a while because they killed workers."},
    {Counter::compilations, "compilations", "Code generations done."},
    {Counter::kernels_supplied, "kernels_supplied",
     "Kernels that builds had of packs, of other sources or of each other."},
    {Counter::artifacts_published, "artifacts_published", "Artifacts given to the store."},
    {Counter::commands, "commands", "Commands answered."},
    {Counter::kernels_tuned, "kernels_tuned", "Kernels whose candidates raced in the background."},
    {Counter::programs_not_judged, "programs_not_judged",
     "Programs published on their kernels' verdicts: their own is missing, or not to the end."},
}};

class Counters {
 public:
  void add(Counter counter, uint64_t count = 1) { m_values[static_cast<size_t>(counter)] += count; }
  uint64_t value(Counter counter) const { return m_values[static_cast<size_t>(counter)]; }

 private:
  std::array<uint64_t, static_cast<size_t>(Counter::k_count)> m_values{};
};

}  // namespace kiln
