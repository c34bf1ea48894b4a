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
  const kiln_artifact_header& header = view.header;
  return Image{{view.payload, view.payload + header.payload_size},
               header.entry,
               header.tasks,
               header.workspace_bytes,
               header.features};
}

std::optional<Digest> Published::complete_plan(const Digest& key) {
  kiln_view view;
  if (kiln_reader_find_key(m_reader, key.bytes.data(), KILN_ARTIFACT_PLAN, &view) != KILN_HIT) return std::nullopt;
  flatbuffers::Verifier verifier(view.payload, view.header.payload_size);
  if (!verifier.VerifyBuffer<fb::Plan>(nullptr)) return std::nullopt;
  const auto* plan = flatbuffers::GetRoot<fb::Plan>(view.payload);
  if (plan->codes()) {
    for (const fb::ArtifactDigest* code : *plan->codes()) {
      kiln_view kernel;
      if (kiln_reader_find_digest(m_reader, code->bytes()->data(), KILN_ARTIFACT_CODE, &kernel) != KILN_HIT) {
        return std::nullopt;
      }
    }
  }
  return digest_in(view);
}

}  // namespace kiln
