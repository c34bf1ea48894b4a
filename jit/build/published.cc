#include "jit/build/published.h"

#include <algorithm>
#include <cstring>

#include "backends/schedule_bytes.h"
#include "base/flatbuffer_values.h"
#include "jit/run/program_generated.h"

namespace kiln {

namespace {

Digest digest_in(const kiln_view& view) {
  Digest digest;
  std::memcpy(digest.bytes.data(), view.header.digest, digest.bytes.size());
  return digest;
}

Image image_in(const kiln_view& view) {
  const kiln_artifact_header& header = view.header;
  return {{view.payload, view.payload + header.payload_size},
          header.entry,
          header.tasks,
          header.workspace_bytes,
          header.features};
}

/// The plan that the key leads to; null where there is none. `view` has its bytes.
const fb::Plan* find_plan(kiln_reader* reader, const Digest& key, kiln_view& view) {
  if (kiln_reader_find_key(reader, key.bytes.data(), KILN_ARTIFACT_PLAN, &view) != KILN_HIT) return nullptr;
  return verified<fb::Plan>({view.payload, view.header.payload_size});
}

std::optional<PublishedChoices> choices_of(const fb::Plan* plan) {
  if (plan == nullptr || plan->choices() == nullptr) return std::nullopt;
  const auto choices = parse_choices<FuseChoices>({plan->choices()->data(), plan->choices()->size()});
  return choices.ok() ? std::optional(PublishedChoices{*choices, plan->choice_generation()}) : std::nullopt;
}

}  // namespace

std::optional<PublishedChoices> choices_in(std::span<const uint8_t> plan) {
  return choices_of(verified<fb::Plan>(plan));
}

Published::Published(const std::string& cache_directory, CodeSupply* supply)
    : m_reader(kiln_reader_open(cache_directory.c_str())), m_supply(supply) {}
Published::~Published() { kiln_reader_close(m_reader); }

std::optional<KernelChoice> Published::code(const Digest& key) {
  kiln_view view;
  if (kiln_reader_find_key(m_reader, key.bytes.data(), KILN_ARTIFACT_CODE, &view) != KILN_HIT) return std::nullopt;
  return KernelChoice{digest_in(view), view.generation};
}

std::optional<Image> Published::image(const Digest& key) {
  kiln_view view;
  if (kiln_reader_find_key(m_reader, key.bytes.data(), KILN_ARTIFACT_CODE, &view) != KILN_HIT) return std::nullopt;
  return image_in(view);
}

std::optional<Image> Published::image_named(const Digest& digest) {
  kiln_view view;
  const kiln_miss miss = kiln_reader_find_digest(m_reader, digest.bytes.data(), KILN_ARTIFACT_CODE, &view);
  return miss == KILN_HIT ? std::optional(image_in(view)) : std::nullopt;
}

std::optional<PublishedRecord> Published::mapped_record(const Digest& key) {
  kiln_view view;
  if (kiln_reader_find_key(m_reader, key.bytes.data(), KILN_ARTIFACT_RECORD, &view) != KILN_HIT) return std::nullopt;
  return PublishedRecord{{reinterpret_cast<const char*>(view.payload), view.header.payload_size}, view.generation};
}

void Published::ask_for_records(std::span<const Digest> keys) {
  if (m_supply == nullptr) return;
  std::vector<Digest> unknown;
  for (const Digest& key : keys) {
    if (!mapped_record(key) && m_elsewhere.try_emplace(key).second) unknown.push_back(key);
  }
  if (unknown.empty()) return;
  auto found = m_supply->find(unknown, ArtifactKind::record, /*raced=*/true);
  if (!found.ok()) return;
  for (SuppliedEntry& entry : *found) m_elsewhere[entry.key] = std::move(entry);
}

std::optional<PublishedRecord> Published::record(const Digest& key) {
  if (const auto mapped = mapped_record(key)) return mapped;
  ask_for_records({&key, 1});
  const auto known = m_elsewhere.find(key);
  if (known == m_elsewhere.end() || known->second.artifact.payload.empty()) return std::nullopt;
  const std::vector<uint8_t>& json = known->second.artifact.payload;
  return PublishedRecord{
      {reinterpret_cast<const char*>(json.data()), json.size()}, known->second.generation, /*is_elsewhere=*/true};
}

std::optional<PublishedChoices> Published::choices(const Digest& key) {
  kiln_view view;
  return choices_of(find_plan(m_reader, key, view));
}

bool Published::has_plan(const Digest& key, const Digest& artifact) {
  kiln_view view;
  const fb::Plan* plan = find_plan(m_reader, key, view);
  if (plan == nullptr || digest_in(view) != artifact) return false;
  const auto* codes = plan->codes();
  return codes == nullptr || std::ranges::all_of(*codes, [&](const fb::ArtifactDigest* code) {
           kiln_view kernel;
           return kiln_reader_find_digest(m_reader, code->bytes()->data(), KILN_ARTIFACT_CODE, &kernel) == KILN_HIT;
         });
}

}  // namespace kiln
