#include "jit/build/kernels/near_records.h"

#include <algorithm>
#include <ranges>

#include "autotune/record.h"
#include "jit/resolve/key.h"

namespace kiln {

std::vector<NearSchedule> NearRecords::schedules(const KernelSpec& spec, std::span<const Schedule> known,
                                                 size_t most) const {
  std::vector<Digest> keys;
  for (const Neighbourhood& place : around(neighbourhood_of(spec))) keys.push_back(key_of(place).digest());
  m_published.ask_for_records(keys);
  std::vector<NearSchedule> found;
  for (const Digest& key : keys) {
    if (found.size() == most) break;
    const auto kept = find(key);
    if (!kept) continue;
    const auto record = TuningRecord::parse(kept->json);
    if (!record.ok()) continue;
    const TuningRecord::Candidate& winner = record->candidates[record->winner];
    const auto is_it = [&](const Schedule& schedule) { return schedule.bytes == winner.schedule; };
    // Without bytes it was code from before, that none of the candidates then made.
    if (winner.schedule.empty() || std::ranges::any_of(known, is_it)) continue;
    if (std::ranges::any_of(found, is_it, &NearSchedule::schedule)) continue;
    found.push_back({{winner.schedule, winner.description}, record->kernel});
  }
  return found;
}

void NearRecords::add(const KernelSpec& spec, const Digest& record) {
  const Key key = key_of(neighbourhood_of(spec));
  const Digest digest = key.digest();
  const auto before = find(digest);
  const uint32_t generation = before ? before->generation + 1 : 0;
  m_chosen.heads.push_back({digest, record, generation, key.to_json(), kernel_name(spec)});
}

Key NearRecords::key_of(const Neighbourhood& place) const {
  return near_key(place.family, place.sizes_text(), m_target, m_machine);
}

std::optional<PublishedRecord> NearRecords::find(const Digest& key) const {
  const auto newest_first = m_chosen.heads | std::views::reverse;
  const auto head = std::ranges::find(newest_first, key, &BuiltHead::key);
  if (head == newest_first.end()) return m_published.record(key);
  const auto record = std::ranges::find(m_chosen.artifacts, head->artifact, &BuiltArtifact::digest);
  if (record == m_chosen.artifacts.end()) return std::nullopt;
  return PublishedRecord{{reinterpret_cast<const char*>(record->payload.data()), record->payload.size()},
                         head->generation};
}

}  // namespace kiln
