#include "cache/store/catalog.h"

#include <algorithm>
#include <cassert>

#include "base/bytes.h"

namespace kiln {

const Catalog::ArtifactState* Catalog::artifact(const Digest& digest) const {
  const auto found = m_artifacts.find(digest);
  return found == m_artifacts.end() ? nullptr : &found->second;
}

const Catalog::HeadState* Catalog::head(const Digest& key) const {
  const auto found = m_heads.find(key);
  return found == m_heads.end() ? nullptr : &found->second;
}

void Catalog::add_artifact(const Digest& digest, ArtifactState state) { m_artifacts.emplace(digest, std::move(state)); }

void Catalog::remove_artifact(const Digest& digest) {
  const auto found = m_artifacts.find(digest);
  if (found == m_artifacts.end()) return;
  for (const Digest& key : found->second.keys) {
    m_heads.erase(key);
    m_changes.removed_keys.push_back(key);
  }
  m_changes.removed_artifacts.push_back(digest);
  m_artifacts.erase(found);
}

void Catalog::set_head(const Digest& key, HeadState head) {
  assert(m_artifacts.contains(head.artifact) && "a head leads to an artifact that is kept");
  if (const auto before = m_heads.find(key); before != m_heads.end()) {
    std::erase(m_artifacts.at(before->second.artifact).keys, key);
  }
  m_heads[key] = head;
  m_artifacts.at(head.artifact).keys.push_back(key);
  m_changes.artifacts.push_back(head.artifact);
}

void Catalog::set_location(const Digest& digest, const Location& location) {
  m_artifacts.at(digest).location = location;
  m_changes.artifacts.push_back(digest);
}

void Catalog::set_pinned(const Digest& digest, bool pinned) { m_artifacts.at(digest).pinned = pinned; }

void Catalog::clear() {
  m_artifacts.clear();
  m_heads.clear();
  m_changes = {};
}

Catalog::Changes Catalog::take_changes() { return std::exchange(m_changes, {}); }

namespace records {
namespace {

constexpr size_t k_digest_bytes = sizeof(Digest::bytes);

std::string tagged(char tag, const Digest& digest) {
  std::string key(1, tag);
  key.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  return key;
}

std::string to_string(const ByteWriter& writer) {
  return {reinterpret_cast<const char*>(writer.bytes().data()), writer.bytes().size()};
}

/// Takes values off the front of `rest`; once something is missing, everything is.
class Cursor {
 public:
  explicit Cursor(std::string_view rest) : m_rest(rest) {}

  template <typename T>
  T take() {
    T value{};
    const std::string_view bytes = take_bytes(sizeof value);
    if (m_valid) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string_view take_bytes(size_t size) {
    if (!m_valid || size > m_rest.size()) {
      m_valid = false;
      return {};
    }
    const std::string_view bytes = m_rest.substr(0, size);
    m_rest.remove_prefix(size);
    return bytes;
  }
  bool finished() const { return m_valid && m_rest.empty(); }

 private:
  std::string_view m_rest;
  bool m_valid = true;
};

}  // namespace

std::string artifact_key(const Digest& digest) { return tagged('a', digest); }
std::string pin_key(const Digest& digest) { return tagged('p', digest); }
std::string content_key(const Digest& key) { return tagged('g', key); }
std::string head_prefix(const Digest& key) { return tagged('h', key); }

std::string head_key(const Digest& key, uint32_t generation) {
  std::string bytes = head_prefix(key);
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(generation >> shift));
  return bytes;
}

std::string encode_artifact(const Catalog::ArtifactState& state) {
  ByteWriter writer;
  writer.write(state.kind);
  writer.write(state.payload_bytes);
  writer.write(state.created_ms);
  return to_string(writer);
}

std::string encode_head(const Head& head) {
  ByteWriter writer;
  for (uint8_t byte : head.artifact.bytes) writer.write(byte);
  writer.write(head.created_ms);
  writer.write(head.canonical_key);
  writer.write(std::string_view(head.provenance));
  return to_string(writer);
}

std::optional<Digest> digest_in(std::string_view key) {
  if (key.size() < 1 + k_digest_bytes) return std::nullopt;
  Digest digest;
  std::memcpy(digest.bytes.data(), key.data() + 1, k_digest_bytes);
  return digest;
}

std::optional<Catalog::ArtifactState> decode_artifact(std::string_view value) {
  Cursor cursor(value);
  Catalog::ArtifactState state;
  state.kind = cursor.take<ArtifactKind>();
  state.payload_bytes = cursor.take<uint64_t>();
  state.created_ms = cursor.take<uint64_t>();
  if (!cursor.finished()) return std::nullopt;
  return state;
}

std::optional<Head> decode_head(std::string_view key, std::string_view value) {
  const auto digest = digest_in(key);
  if (!digest || key.size() != 1 + k_digest_bytes + sizeof(uint32_t)) return std::nullopt;
  Head head;
  head.key = *digest;
  for (char byte : key.substr(1 + k_digest_bytes)) {
    head.generation = head.generation << 8 | static_cast<uint8_t>(byte);
  }
  Cursor cursor(value);
  head.artifact.bytes = cursor.take<std::array<uint8_t, k_digest_bytes>>();
  head.created_ms = cursor.take<uint64_t>();
  const std::string_view canonical = cursor.take_bytes(cursor.take<uint32_t>());
  head.canonical_key.assign(canonical.begin(), canonical.end());
  head.provenance = cursor.take_bytes(cursor.take<uint32_t>());
  if (!cursor.finished()) return std::nullopt;
  return head;
}

}  // namespace records
}  // namespace kiln
