#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/expected.h"
#include "cache/format/artifact.h"

/// Artifacts as bytes, for those who make and keep them. Pure functions; the reader has its own few lines of
/// C.
namespace kiln {

enum class ArtifactKind : uint16_t {
  code = KILN_ARTIFACT_CODE,
  plan = KILN_ARTIFACT_PLAN,
  program = KILN_ARTIFACT_PROGRAM,
  capture = KILN_ARTIFACT_CAPTURE,
  record = KILN_ARTIFACT_RECORD,
  exported = KILN_ARTIFACT_EXPORT,
};

/// "code", "plan", "program", "capture", "record", "export"; "unknown" for a value outside the enum.
std::string_view to_string(ArtifactKind kind);

/// What a launch needs besides the code; all zero for other kinds. Units as in kiln_artifact_header.
struct LaunchData {
  uint64_t entry = 0;
  uint64_t tasks = 0;
  uint64_t workspace_bytes = 0;
  uint64_t features = 0;
  std::string backend;  // at most 15 characters

  bool operator==(const LaunchData&) const = default;
};

struct Artifact {
  ArtifactKind kind = ArtifactKind::code;
  LaunchData launch;
  std::vector<uint8_t> payload;

  bool operator==(const Artifact&) const = default;
};

/// The artifact's name: digest_of(kind as u16 ++ launch data, 64 bytes ++ digest_of(payload)).
Digest artifact_digest(const Artifact& artifact);

/// header ++ zeros ++ payload, with the payload `payload_offset` bytes in (at least the header's 128).
/// Errors: invalid_argument when a field is outside its limits.
Expected<std::vector<uint8_t>> encode_artifact(const Artifact& artifact, const Digest& digest, uint32_t payload_offset);

/// The header of an artifact that starts at bytes[0], when its fields, bounds and checksum hold.
/// Errors: data_loss, with what is wrong.
Expected<kiln_artifact_header> check_artifact(std::span<const uint8_t> bytes);

/// The artifact that a header speaks of.
Artifact artifact_of(const kiln_artifact_header& header, std::span<const uint8_t> payload);

/// check_artifact, then the artifact itself; the digest is recomputed and must match `digest`.
Expected<Artifact> decode_artifact(std::span<const uint8_t> bytes, const Digest& digest);

}  // namespace kiln
