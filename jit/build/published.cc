#include "jit/build/published.h"

#include <cstring>

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

}  // namespace

Published::Published(const std::string& cache_directory) : m_reader(kiln_reader_open(cache_directory.c_str())) {}
Published::~Published() { kiln_reader_close(m_reader); }

std::optional<Digest> Published::code(const Digest& key) {
  kiln_view view;
  if (kiln_reader_find_key(m_reader, key.bytes.data(), KILN_ARTIFACT_CODE, &view) != KILN_HIT) return std::nullopt;
  return digest_in(view);
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

std::optional<std::span<const uint8_t>> Published::plan_named(const Digest& digest) {
  kiln_view view;
  const kiln_miss miss = kiln_reader_find_digest(m_reader, digest.bytes.data(), KILN_ARTIFACT_PLAN, &view);
  if (miss != KILN_HIT) return std::nullopt;
  return std::span<const uint8_t>(view.payload, view.header.payload_size);
}

std::optional<Published::CompletePlan> Published::complete_plan(const Digest& key) {
  kiln_view view;
  if (kiln_reader_find_key(m_reader, key.bytes.data(), KILN_ARTIFACT_PLAN, &view) != KILN_HIT) return std::nullopt;
  flatbuffers::Verifier verifier(view.payload, view.header.payload_size);
  if (!verifier.VerifyBuffer<fb::Plan>(nullptr)) return std::nullopt;
  const auto* plan = flatbuffers::GetRoot<fb::Plan>(view.payload);
  CompletePlan complete{digest_in(view), {}};
  if (plan->codes()) {
    for (const fb::ArtifactDigest* code : *plan->codes()) {
      kiln_view kernel;
      if (kiln_reader_find_digest(m_reader, code->bytes()->data(), KILN_ARTIFACT_CODE, &kernel) != KILN_HIT) {
        return std::nullopt;
      }
      complete.codes.push_back(digest_in(kernel));
    }
  }
  return complete;
}

}  // namespace kiln
