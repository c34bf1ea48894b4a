#include "cache/pack/pack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/ceil_div.h"
#include "base/fd.h"
#include "base/limits.h"
#include "base/trusted_file.h"

namespace kiln {
namespace {

template <typename... Args>
Status damaged(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::data_loss, "{}: {}", path, fmt::format(format, std::forward<Args>(args)...));
}

/// A pack's bytes, where they are: in a file that is open, or in memory.
struct OpenPack {
  UniqueFd fd;
  std::shared_ptr<const std::vector<uint8_t>> bytes;  // null: in the file
  uint64_t size = 0;
  bool is_trusted = false;
};

Expected<OpenPack> open_file(const std::string& path) {
  OpenPack file{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), nullptr};
  if (!file.fd) {
    const StatusCode code = errno == ENOENT ? StatusCode::not_found : StatusCode::unavailable;
    return error(code, "{}: {}", path, std::strerror(errno));
  }
  struct stat status;
  if (::fstat(file.fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return damaged(path, "is no regular file");
  file.size = static_cast<uint64_t>(status.st_size);
  file.is_trusted = is_trusted_file(status);
  return file;
}

Expected<OpenPack> open_pack(const std::string& path, std::shared_ptr<const std::vector<uint8_t>> bytes) {
  if (!bytes) return open_file(path);
  const uint64_t size = bytes->size();
  return OpenPack{UniqueFd(), std::move(bytes), size};
}

Status read_exactly(const std::string& path, const OpenPack& pack, void* to, size_t size, uint64_t offset) {
  auto* bytes = static_cast<uint8_t*>(to);
  if (pack.bytes) {
    if (offset > pack.size || size > pack.size - offset) return damaged(path, "ends in the middle");
    std::copy_n(pack.bytes->data() + offset, size, bytes);
    return {};
  }
  while (size > 0) {
    const ssize_t got = ::pread(pack.fd.get(), bytes, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(StatusCode::unavailable, "{}: {}", path, std::strerror(errno));
    if (got == 0) return damaged(path, "ends in the middle");
    bytes += got;
    size -= static_cast<size_t>(got);
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

bool is_zero(std::span<const uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; });
}

/// Walks the body piece by piece: each begins where the last one ended, so that nothing overlaps and nothing is hidden.
class Walk {
 public:
  bool passes(uint64_t offset, uint64_t length, uint64_t length_max) {
    if (offset != m_end || length > length_max) return false;
    m_end = round_up(offset + length, k_pack_alignment);
    return true;
  }
  uint64_t end() const { return m_end; }

 private:
  uint64_t m_end = 0;
};

constexpr uint64_t k_artifact_length_max = sizeof(kiln_artifact_header) + limits::k_artifact_bytes;
constexpr uint64_t k_description_length_max =
    3 * sizeof(uint32_t) + limits::k_canonical_key_bytes + limits::k_provenance_bytes + limits::k_kept_content_bytes;

/// Takes texts led by their size off the front of a description.
class DescriptionReader {
 public:
  explicit DescriptionReader(std::span<const uint8_t> bytes) : m_rest(bytes) {}

  std::optional<std::span<const uint8_t>> next(size_t size_max) {
    uint32_t size = 0;
    if (m_rest.size() < sizeof size) return std::nullopt;
    std::memcpy(&size, m_rest.data(), sizeof size);
    m_rest = m_rest.subspan(sizeof size);
    if (size > m_rest.size() || size > size_max) return std::nullopt;
    const auto text = m_rest.first(size);
    m_rest = m_rest.subspan(size);
    return text;
  }
  bool is_at_end() const { return m_rest.empty(); }

 private:
  std::span<const uint8_t> m_rest;
};

Status check_header(const std::string& path, const PackHeader& header, uint64_t file_size) {
  if (header.magic != k_pack_magic) return damaged(path, "is no pack");
  if (header.version != k_pack_version) {
    return damaged(path, "is a pack of version {}, expected {}", header.version, k_pack_version);
  }
  const uint64_t manifest = pack_manifest_size(header.artifact_count, header.head_count);
  if (manifest > limits::k_pack_manifest_bytes) {
    return error(StatusCode::resource_exhausted, "{}: a manifest of {} bytes, at most {}", path, manifest,
                 limits::k_pack_manifest_bytes);
  }
  const uint64_t body = pack_body_offset(header.artifact_count, header.head_count);
  if (header.reserved != 0 || file_size < body || file_size - body != header.body_size) {
    return damaged(path, "has {} bytes, its header says otherwise", file_size);
  }
  return {};
}

Status check_artifacts(const std::string& path, std::span<const PackedArtifact> artifacts, Walk& walk) {
  const PackedArtifact* before = nullptr;
  for (const PackedArtifact& each : artifacts) {
    const bool is_known = to_string(static_cast<ArtifactKind>(each.kind)) != "unknown";
    const bool ascends = before == nullptr || std::memcmp(before->digest, each.digest, sizeof each.digest) < 0;
    if (!is_known || !ascends || !walk.passes(each.offset, each.length, k_artifact_length_max)) {
      return damaged(path, "artifact {} is out of shape or place", digest_in(each.digest).to_short());
    }
    before = &each;
  }
  return {};
}

Status check_heads(const Pack& pack, Walk& walk) {
  const PackedHead* before = nullptr;
  for (const PackedHead& each : pack.heads()) {
    const bool ascends = before == nullptr || std::memcmp(before->key, each.key, sizeof each.key) < 0;
    if (!ascends || pack.artifact(digest_in(each.artifact)) == nullptr ||
        !walk.passes(each.offset, each.length, k_description_length_max)) {
      return damaged(pack.path(), "key {} is out of shape or place", digest_in(each.key).to_short());
    }
    before = &each;
  }
  return {};
}

}  // namespace

Sha256 pack_statement(PackHeader header, std::span<const PackedArtifact> artifacts, std::span<const PackedHead> heads) {
  constexpr std::string_view k_purpose = "a pack of kiln";  // a signature of ours means nothing elsewhere
  std::memset(header.signature, 0, sizeof header.signature);
  std::vector<uint8_t> signed_bytes(k_purpose.begin(), k_purpose.end());
  const auto append = [&](const void* from, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    signed_bytes.insert(signed_bytes.end(), bytes, bytes + size);
  };
  append(&header, sizeof header);
  append(artifacts.data(), artifacts.size_bytes());
  append(heads.data(), heads.size_bytes());
  return sha256_of(signed_bytes);
}

Expected<Pack> Pack::open(const std::string& path) {
  Pack pack;
  pack.m_path = path;
  KILN_RETURN_IF_ERROR(pack.read_manifest());
  return pack;
}

Expected<Pack> Pack::in_memory(std::vector<uint8_t> bytes, std::string name) {
  Pack pack;
  pack.m_path = std::move(name);
  pack.m_bytes = std::make_shared<const std::vector<uint8_t>>(std::move(bytes));
  KILN_RETURN_IF_ERROR(pack.read_manifest());
  return pack;
}

/// Header and manifest, and all that they are checked for.
Status Pack::read_manifest() {
  KILN_ASSIGN_OR_RETURN(const OpenPack source, open_pack(m_path, m_bytes));
  m_is_trusted_file = source.is_trusted;
  KILN_RETURN_IF_ERROR(read_exactly(m_path, source, &m_header, sizeof m_header, 0));
  const PackHeader& header = m_header;
  KILN_RETURN_IF_ERROR(check_header(m_path, header, source.size));
  m_artifacts.resize(header.artifact_count);
  m_heads.resize(header.head_count);
  const std::span artifacts(m_artifacts);
  const std::span heads(m_heads);
  KILN_RETURN_IF_ERROR(read_exactly(m_path, source, artifacts.data(), artifacts.size_bytes(), sizeof header));
  KILN_RETURN_IF_ERROR(
      read_exactly(m_path, source, heads.data(), heads.size_bytes(), sizeof header + artifacts.size_bytes()));
  if (!is_zero(header.signer) || !is_zero(header.signature)) {
    PublicKey signer;
    Signature signature;
    std::ranges::copy(header.signer, signer.bytes.begin());
    std::ranges::copy(header.signature, signature.begin());
    if (!signer.has_signed(pack_statement(header, artifacts, heads), signature)) {
      return damaged(m_path, "its signature is not that of {} over what it holds", signer.to_short());
    }
    m_signer = signer;
  }
  Walk walk;
  KILN_RETURN_IF_ERROR(check_artifacts(m_path, artifacts, walk));
  KILN_RETURN_IF_ERROR(check_heads(*this, walk));
  return walk.end() == header.body_size ? Status() : damaged(m_path, "its entries do not fill it");
}

uint64_t Pack::size() const {
  return pack_body_offset(m_header.artifact_count, m_header.head_count) + m_header.body_size;
}

const PackedHead* Pack::head(const Digest& key) const {
  const auto at =
      std::ranges::lower_bound(m_heads, key, {}, [](const PackedHead& head) { return digest_in(head.key); });
  return at != m_heads.end() && digest_in(at->key) == key ? &*at : nullptr;
}

const PackedArtifact* Pack::artifact(const Digest& digest) const {
  const auto at = std::ranges::lower_bound(m_artifacts, digest, {},
                                           [](const PackedArtifact& artifact) { return digest_in(artifact.digest); });
  return at != m_artifacts.end() && digest_in(at->digest) == digest ? &*at : nullptr;
}

Expected<std::vector<uint8_t>> Pack::read_piece(uint64_t offset, uint64_t length, const uint8_t sha256[32]) const {
  KILN_ASSIGN_OR_RETURN(const OpenPack source, open_pack(m_path, m_bytes));
  std::vector<uint8_t> bytes(length);
  KILN_RETURN_IF_ERROR(read_exactly(m_path, source, bytes.data(), bytes.size(),
                                    pack_body_offset(m_header.artifact_count, m_header.head_count) + offset));
  const Sha256 hash = sha256_of(bytes);
  if (!std::equal(hash.begin(), hash.end(), sha256)) {
    return damaged(m_path, "the bytes at {} are not those that were packed", offset);
  }
  return bytes;
}

Expected<std::vector<uint8_t>> Pack::read(const PackedArtifact& artifact) const {
  KILN_ASSIGN_OR_RETURN(std::vector<uint8_t> bytes, read_piece(artifact.offset, artifact.length, artifact.sha256));
  // The signer may have been wrong about what the bytes are.
  const auto decoded = decode_artifact(bytes, digest_in(artifact.digest));
  if (!decoded.ok()) return decoded.status().with_context(m_path);
  if (static_cast<uint16_t>(decoded->kind) != artifact.kind) {
    return damaged(m_path, "artifact {} is of another kind than its entry", digest_in(artifact.digest).to_short());
  }
  return bytes;
}

Expected<KeyDescription> Pack::describe(const PackedHead& head) const {
  KILN_ASSIGN_OR_RETURN(const auto bytes, read_piece(head.offset, head.length, head.sha256));
  DescriptionReader reader(bytes);
  const auto canonical = reader.next(limits::k_canonical_key_bytes);
  const auto provenance = canonical ? reader.next(limits::k_provenance_bytes) : std::nullopt;
  const auto content = provenance ? reader.next(limits::k_kept_content_bytes) : std::nullopt;
  if (!content || !reader.is_at_end() || digest_of(*canonical) != digest_in(head.key)) {
    return damaged(m_path, "the description of key {} is another's", digest_in(head.key).to_short());
  }
  return KeyDescription{{canonical->begin(), canonical->end()},
                        {provenance->begin(), provenance->end()},
                        {content->begin(), content->end()}};
}

Status Pack::check_all() const {
  for (const PackedArtifact& artifact : m_artifacts) {
    if (const auto bytes = read(artifact); !bytes.ok()) return bytes.status();
  }
  for (const PackedHead& head : m_heads) {
    if (const auto description = describe(head); !description.ok()) return description.status();
  }
  return check_gaps();
}

/// Between pieces lie zeros: two packs of the same entries are the same bytes.
Status Pack::check_gaps() const {
  KILN_ASSIGN_OR_RETURN(const OpenPack source, open_pack(m_path, m_bytes));
  const auto is_empty = [&](uint64_t from, uint64_t to) -> Expected<bool> {
    std::vector<uint8_t> gap(to - from);
    KILN_RETURN_IF_ERROR(read_exactly(m_path, source, gap.data(), gap.size(), from));
    return is_zero(gap);
  };
  const uint64_t body = pack_body_offset(m_header.artifact_count, m_header.head_count);
  std::vector<std::pair<uint64_t, uint64_t>> gaps = {
      {sizeof m_header + pack_manifest_size(m_header.artifact_count, m_header.head_count), body}};
  const auto add = [&](const auto& piece) {
    const uint64_t end = piece.offset + piece.length;
    gaps.emplace_back(body + end, body + round_up(end, k_pack_alignment));
  };
  std::ranges::for_each(m_artifacts, add);
  std::ranges::for_each(m_heads, add);
  for (const auto& [from, to] : gaps) {
    KILN_ASSIGN_OR_RETURN(const bool empty, is_empty(from, to));
    if (!empty) return damaged(m_path, "there are bytes at {} that belong to nothing", from);
  }
  return {};
}

}  // namespace kiln
