#include "cache/format/artifact_bytes.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/limits.h"
#include "cache/format/checksum.h"

namespace kiln {
namespace {

Status data_loss(std::string message) { return {StatusCode::data_loss, std::move(message)}; }

kiln_artifact_header header_of(const Artifact& artifact) {
  kiln_artifact_header header{};
  header.magic = KILN_ARTIFACT_MAGIC;
  header.version = KILN_ARTIFACT_VERSION;
  header.kind = static_cast<uint16_t>(artifact.kind);
  header.payload_size = artifact.payload.size();
  header.entry = artifact.launch.entry;
  header.tasks = artifact.launch.tasks;
  header.workspace_bytes = artifact.launch.workspace_bytes;
  header.features = artifact.launch.features;
  std::memcpy(header.backend, artifact.launch.backend.data(),
              std::min(artifact.launch.backend.size(), sizeof header.backend));
  return header;
}

Digest digest_with(const kiln_artifact_header& header, std::span<const uint8_t> payload) {
  std::array<uint8_t, sizeof header.kind + KILN_LAUNCH_DATA_BYTES + sizeof(Digest::bytes)> named;
  const Digest content = digest_of(payload);
  uint8_t* out = named.data();
  out = std::copy_n(reinterpret_cast<const uint8_t*>(&header.kind), sizeof header.kind, out);
  out = std::copy_n(reinterpret_cast<const uint8_t*>(&header.entry), KILN_LAUNCH_DATA_BYTES, out);
  std::copy(content.bytes.begin(), content.bytes.end(), out);
  return digest_of(named);
}

}  // namespace

std::string_view to_string(ArtifactKind kind) {
  switch (kind) {
    case ArtifactKind::code:
      return "code";
    case ArtifactKind::plan:
      return "plan";
    case ArtifactKind::program:
      return "program";
    case ArtifactKind::capture:
      return "capture";
    case ArtifactKind::record:
      return "record";
    case ArtifactKind::exported:
      return "export";
  }
  return "unknown";
}

Digest artifact_digest(const Artifact& artifact) { return digest_with(header_of(artifact), artifact.payload); }

Expected<std::vector<uint8_t>> encode_artifact(const Artifact& artifact, const Digest& digest,
                                               uint32_t payload_offset) {
  kiln_artifact_header header = header_of(artifact);
  if (to_string(artifact.kind) == "unknown") {
    return invalid_argument("artifact {}: kind {} does not exist", digest.to_short(), header.kind);
  }
  if (artifact.payload.size() > limits::k_artifact_bytes) {
    return error(StatusCode::resource_exhausted, "artifact {}: {} bytes, at most {}", digest.to_short(),
                 artifact.payload.size(), limits::k_artifact_bytes);
  }
  if (artifact.launch.backend.size() >= sizeof header.backend) {
    return invalid_argument("artifact {}: backend name '{}' is longer than {} characters", digest.to_short(),
                            artifact.launch.backend, sizeof header.backend - 1);
  }
  assert(payload_offset >= sizeof header && "the payload would overlap the header");
  header.payload_offset = payload_offset;
  header.checksum = kiln_artifact_checksum(&header, artifact.payload.data(), artifact.payload.size());
  std::memcpy(header.digest, digest.bytes.data(), sizeof header.digest);

  std::vector<uint8_t> bytes(payload_offset + artifact.payload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  std::copy(artifact.payload.begin(), artifact.payload.end(), bytes.begin() + payload_offset);
  return bytes;
}

Expected<kiln_artifact_header> check_artifact(std::span<const uint8_t> bytes) {
  kiln_artifact_header header;
  if (bytes.size() < sizeof header) return data_loss(fmt::format("artifact is only {} bytes", bytes.size()));
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != KILN_ARTIFACT_MAGIC || header.version != KILN_ARTIFACT_VERSION) {
    return data_loss(fmt::format("artifact has magic {:#x} version {}", header.magic, header.version));
  }
  if (header.payload_offset < sizeof header || header.payload_offset > bytes.size() ||
      header.payload_size != bytes.size() - header.payload_offset) {
    return data_loss(fmt::format("artifact of {} bytes says payload {} at {}", bytes.size(), header.payload_size,
                                 header.payload_offset));
  }
  const uint8_t* payload = bytes.data() + header.payload_offset;
  if (header.checksum != kiln_artifact_checksum(&header, payload, header.payload_size)) {
    return data_loss("artifact's checksum does not match its bytes");
  }
  return header;
}

Artifact artifact_of(const kiln_artifact_header& header, std::span<const uint8_t> payload) {
  const auto* name = reinterpret_cast<const char*>(header.backend);
  return {static_cast<ArtifactKind>(header.kind),
          {header.entry, header.tasks, header.workspace_bytes, header.features,
           std::string(name, strnlen(name, sizeof header.backend))},
          {payload.begin(), payload.end()}};
}

Expected<Artifact> decode_artifact(std::span<const uint8_t> bytes, const Digest& digest) {
  KILN_ASSIGN_OR_RETURN(const kiln_artifact_header header, check_artifact(bytes));
  const auto payload = bytes.subspan(header.payload_offset);
  if (digest_with(header, payload) != digest) {
    return data_loss(fmt::format("artifact {}: its bytes have another digest", digest.to_short()));
  }
  return artifact_of(header, payload);
}

}  // namespace kiln
