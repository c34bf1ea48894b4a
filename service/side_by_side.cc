#include "service/side_by_side.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "autotune/record.h"

namespace kiln {

namespace {

using nlohmann::json;

std::optional<TuningRecord> parse(const Artifact& artifact) {
  auto record = TuningRecord::parse({reinterpret_cast<const char*>(artifact.payload.data()), artifact.payload.size()});
  return record.ok() ? std::optional(std::move(record).value()) : std::nullopt;
}

/// The part of a head's key; empty where it has none.
std::string part_of(const Head& head, const char* name) {
  const json parts = json::parse(head.canonical_key, nullptr, false);
  return parts.is_object() ? parts.value(name, "") : "";
}

/// What is kept under the key of `head`, where that came first and is another.
Expected<std::optional<Head>> forestalled(const CacheStore& store, const Head& head) {
  KILN_ASSIGN_OR_RETURN(auto kept, store.head(head.key));
  if (kept && (kept->generation < head.generation || kept->artifact == head.artifact)) kept.reset();
  return kept;
}

/// Has the code of the spec that the batch brings follow upon what is kept.
Status put_code_on_top(const CacheStore& store, const std::string& spec, PublishBatch& batch) {
  for (Head& head : batch.heads) {
    if (part_of(head, "level") != "code" || part_of(head, "spec") != spec) continue;
    KILN_ASSIGN_OR_RETURN(const auto kept, forestalled(store, head));
    if (kept) head.generation = kept->generation + 1;
  }
  return {};
}

/// The record as the batch brings it, else as it is kept; nothing where it is damaged or gone.
Expected<std::optional<TuningRecord>> record_in(const CacheStore& store, const PublishBatch& batch,
                                                const Digest& digest) {
  const auto brought = std::ranges::find(batch.artifacts, digest, artifact_digest);
  if (brought != batch.artifacts.end()) return parse(*brought);
  KILN_ASSIGN_OR_RETURN(const auto kept, store.find(digest));
  return kept ? parse(*kept) : std::nullopt;
}

Status merge_record(const CacheStore& store, const Head& head, const Head& kept, PublishBatch& batch) {
  KILN_ASSIGN_OR_RETURN(const auto mine, record_in(store, batch, head.artifact));
  KILN_ASSIGN_OR_RETURN(const auto others, record_in(store, batch, kept.artifact));
  if (!mine || !others) return {};
  const TuningRecord both = TuningRecord::merged(*mine, *others);
  const auto schedule_of = [](const TuningRecord& record) { return record.candidates[record.winner].schedule; };
  const bool is_mine = schedule_of(both) == schedule_of(*mine) && schedule_of(both) != schedule_of(*others);
  if (is_mine) KILN_RETURN_IF_ERROR(put_code_on_top(store, part_of(head, "spec"), batch));

  const std::string text = both.to_json();
  std::erase_if(batch.artifacts, [&](const Artifact& each) { return artifact_digest(each) == head.artifact; });
  batch.artifacts.push_back({ArtifactKind::record, {}, {text.begin(), text.end()}});
  const Digest merged = artifact_digest(batch.artifacts.back());
  for (Head& each : batch.heads) {
    if (each.artifact == head.artifact) each.artifact = merged;  // of the neighbourhood, too
    if (each.key == head.key) each.generation = kept.generation + (merged == kept.artifact ? 0 : 1);
  }
  return {};
}

}  // namespace

Status merge_records(const CacheStore& store, PublishBatch& batch) {
  for (const Head& brought : batch.heads) {
    if (part_of(brought, "level") != "tuning") continue;
    const Head head = brought;
    KILN_ASSIGN_OR_RETURN(const auto kept, forestalled(store, head));
    if (kept) KILN_RETURN_IF_ERROR(merge_record(store, head, *kept, batch));
  }
  return {};
}

}  // namespace kiln
