#include "service/published_programs.h"

#include <algorithm>
#include <cstring>

#include "jit/run/named_artifacts.h"

namespace kiln {

namespace {

/// What a directory that was looked into may keep, before another takes its place.
constexpr size_t k_kept_bytes = size_t{64} << 20;

std::span<const uint8_t> payload_of(const kiln_view& view) { return {view.payload, view.header.payload_size}; }

}  // namespace

kiln_miss PublishedPrograms::look(kiln_miss miss, const kiln_view& view) {
  if (miss == KILN_HIT) m_bytes += view.header.payload_size;
  return miss;
}

bool PublishedPrograms::is_whole(const kiln_view& program) {
  kiln_view view;
  return std::ranges::all_of(plans_named_by(payload_of(program)), [&](const Digest& plan) {
    return look(m_directory->find_digest(plan, KILN_ARTIFACT_PLAN, view), view) == KILN_HIT &&
           std::ranges::all_of(codes_named_by(payload_of(view)), [&](const Digest& code) {
             kiln_view kernel;
             return look(m_directory->find_digest(code, KILN_ARTIFACT_CODE, kernel), kernel) == KILN_HIT;
           });
  });
}

std::optional<std::vector<protocol::PublishedHead>> PublishedPrograms::find(std::span<const Digest> keys,
                                                                            bool is_tuned) {
  if (!m_directory || m_bytes > k_kept_bytes) {
    m_directory.emplace(m_path);
    m_bytes = 0;
  }
  std::vector<protocol::PublishedHead> heads;
  for (const Digest& key : keys) {
    kiln_view program;
    if (look(m_directory->find_key(key, KILN_ARTIFACT_PROGRAM, program), program) != KILN_HIT) return std::nullopt;
    if (is_tuned && !is_tuned_program(payload_of(program))) return std::nullopt;
    if (!is_whole(program)) return std::nullopt;
    protocol::PublishedHead& head = heads.emplace_back(protocol::PublishedHead{key, {}, program.generation});
    std::memcpy(head.artifact.bytes.data(), program.header.digest, head.artifact.bytes.size());
  }
  return heads;
}

}  // namespace kiln
