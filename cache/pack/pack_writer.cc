#include "cache/pack/pack_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/bytes.h"
#include "base/ceil_div.h"
#include "base/limits.h"

namespace kiln {
namespace {

Status failed(const std::string& path) {
  const StatusCode code = errno == ENOSPC || errno == EDQUOT ? StatusCode::resource_exhausted : StatusCode::unavailable;
  return error(code, "{}: {}", path, std::strerror(errno));
}

std::vector<uint8_t> encode(const KeyDescription& description) {
  ByteWriter writer;
  writer.write(std::string_view(description.canonical_key));
  writer.write(std::string_view(description.provenance));
  writer.write(description.content);
  return writer.take();
}

}  // namespace

Expected<PackWriter> PackWriter::create_in_memory(size_t artifacts, size_t heads) {
  if (const uint64_t size = pack_manifest_size(artifacts, heads); size > limits::k_pack_manifest_bytes) {
    return error(StatusCode::resource_exhausted, "{} artifacts and {} keys: a manifest of {} bytes, at most {}",
                 artifacts, heads, size, limits::k_pack_manifest_bytes);
  }
  const PackHeader header{.magic = k_pack_magic,
                          .version = k_pack_version,
                          .artifact_count = static_cast<uint32_t>(artifacts),
                          .head_count = static_cast<uint32_t>(heads)};
  return PackWriter("", UniqueFd(), header);
}

Expected<PackWriter> PackWriter::create(const std::string& path, size_t artifacts, size_t heads) {
  KILN_ASSIGN_OR_RETURN(PackWriter writer, create_in_memory(artifacts, heads));
  writer.m_path = path;
  writer.m_file.reset(::open(writer.aside().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!writer.m_file) return failed(writer.aside());
  return writer;
}

PackWriter::PackWriter(std::string path, UniqueFd file, PackHeader header)
    : m_path(std::move(path)), m_file(std::move(file)), m_header(header) {}
PackWriter::PackWriter(PackWriter&& other) noexcept = default;
PackWriter::~PackWriter() {
  if (m_file) ::unlink(aside().c_str());
}

Status PackWriter::write(std::span<const uint8_t> bytes, uint64_t offset) {
  if (!m_file) {
    m_bytes.resize(std::max<uint64_t>(m_bytes.size(), offset + bytes.size()));
    std::ranges::copy(bytes, m_bytes.begin() + static_cast<ptrdiff_t>(offset));
    return {};
  }
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(m_file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(aside());
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

Expected<uint64_t> PackWriter::append(std::span<const uint8_t> bytes) {
  const uint64_t offset = m_header.body_size;
  KILN_RETURN_IF_ERROR(write(bytes, pack_body_offset(m_header.artifact_count, m_header.head_count) + offset));
  m_header.body_size = round_up(offset + bytes.size(), k_pack_alignment);
  return offset;
}

Status PackWriter::add(const Artifact& artifact) {
  const Digest digest = artifact_digest(artifact);
  if (!m_heads.empty() || m_artifacts.size() == m_header.artifact_count ||
      (!m_artifacts.empty() && digest_in(m_artifacts.back().digest) >= digest)) {
    return invalid_argument("artifact {} is added out of order", digest.to_short());
  }
  KILN_ASSIGN_OR_RETURN(const auto bytes, encode_artifact(artifact, digest, sizeof(kiln_artifact_header)));
  PackedArtifact entry{.length = bytes.size(), .kind = static_cast<uint16_t>(artifact.kind)};
  KILN_ASSIGN_OR_RETURN(entry.offset, append(bytes));
  std::ranges::copy(digest.bytes, entry.digest);
  std::ranges::copy(sha256_of(bytes), entry.sha256);
  m_artifacts.push_back(entry);
  return {};
}

Status PackWriter::add(const Digest& key, const Digest& artifact, uint32_t generation,
                       const KeyDescription& description) {
  if (m_artifacts.size() != m_header.artifact_count || m_heads.size() == m_header.head_count ||
      (!m_heads.empty() && digest_in(m_heads.back().key) >= key)) {
    return invalid_argument("key {} is added out of order", key.to_short());
  }
  const std::vector<uint8_t> bytes = encode(description);
  PackedHead entry{.length = bytes.size(), .generation = generation};
  KILN_ASSIGN_OR_RETURN(entry.offset, append(bytes));
  std::ranges::copy(key.bytes, entry.key);
  std::ranges::copy(artifact.bytes, entry.artifact);
  std::ranges::copy(sha256_of(bytes), entry.sha256);
  m_heads.push_back(entry);
  return {};
}

Expected<uint64_t> PackWriter::write_manifest(const SigningKey* key) {
  if (m_artifacts.size() != m_header.artifact_count || m_heads.size() != m_header.head_count) {
    return invalid_argument("{}: {} artifacts and {} keys were added, {} and {} were said", m_path, m_artifacts.size(),
                            m_heads.size(), m_header.artifact_count, m_header.head_count);
  }
  if (key != nullptr) {
    std::ranges::copy(key->public_key().bytes, m_header.signer);
    std::ranges::copy(key->sign(pack_statement(m_header, m_artifacts, m_heads)), m_header.signature);
  }
  const auto bytes_of = [](const auto& list) {
    return std::span(reinterpret_cast<const uint8_t*>(list.data()), list.size() * sizeof list[0]);
  };
  const auto artifacts = bytes_of(m_artifacts);
  KILN_RETURN_IF_ERROR(write({reinterpret_cast<const uint8_t*>(&m_header), sizeof m_header}, 0));
  KILN_RETURN_IF_ERROR(write(artifacts, sizeof m_header));
  KILN_RETURN_IF_ERROR(write(bytes_of(m_heads), sizeof m_header + artifacts.size()));
  // The last gap counts as a part of the pack.
  return pack_body_offset(m_header.artifact_count, m_header.head_count) + m_header.body_size;
}

Expected<std::vector<uint8_t>> PackWriter::finish_in_memory(const SigningKey* key) {
  KILN_ASSIGN_OR_RETURN(const uint64_t size, write_manifest(key));
  m_bytes.resize(size);
  return std::move(m_bytes);
}

Status PackWriter::finish(const SigningKey* key) {
  KILN_ASSIGN_OR_RETURN(const uint64_t size, write_manifest(key));
  if (::ftruncate(m_file.get(), static_cast<off_t>(size)) != 0 || ::fsync(m_file.get()) != 0 ||
      std::rename(aside().c_str(), m_path.c_str()) != 0) {
    return failed(m_path);
  }
  m_file.reset();
  return {};
}

}  // namespace kiln
