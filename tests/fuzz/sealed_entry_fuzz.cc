// Entries of a fleet's store that nobody signed, with a few bytes of a good one changed. Its hashes are made to fit again, as
// anybody can who writes to the store: what is given has the key that was asked for, is code, and is named by its content.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cache/fleet/sealed_entry.h"
#include "cache/pack/sha256.h"

namespace kiln {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

const SourceEntry& good_entry() {
  static const SourceEntry entry = [] {
    const std::string parts = R"({"level":"code"})";
    SourceEntry made{.key = digest_of(parts), .generation = 2, .canonical_key = parts, .provenance = "{}"};
    made.artifact = {ArtifactKind::code, {16, 4, 64, 7, "cpu"}, std::vector<uint8_t>(100, 0xc3)};
    made.digest = artifact_digest(made.artifact);
    return made;
  }();
  return entry;
}

/// Sets each piece's SHA-256 to that of the bytes which the manifest says are its.
void mend_hashes(std::vector<uint8_t>& pack) {
  if (pack.size() < sizeof(PackHeader)) return;
  PackHeader header;
  std::memcpy(&header, pack.data(), sizeof header);
  const uint64_t body = pack_body_offset(header.artifact_count, header.head_count);
  if (body > pack.size()) return;
  size_t at = sizeof header;
  const auto mend = [&](auto row) {
    std::memcpy(&row, pack.data() + at, sizeof row);
    if (row.offset <= pack.size() - body && row.length <= pack.size() - body - row.offset) {
      std::ranges::copy(sha256_of(std::span(pack).subspan(body + row.offset, row.length)), row.sha256);
      std::memcpy(pack.data() + at, &row, sizeof row);
    }
    at += sizeof row;
  };
  for (uint32_t i = 0; i < header.artifact_count; ++i) mend(PackedArtifact{});
  for (uint32_t i = 0; i < header.head_count; ++i) mend(PackedHead{});
}

void look_at(std::vector<uint8_t> bytes) {
  const SourceEntry& good = good_entry();
  const auto entry = open_sealed(std::move(bytes), good.key, ArtifactKind::code, {}, true);
  if (!entry.ok()) return;
  require(!entry->is_proven && entry->generation == 0 && entry->key == good.key);
  require(entry->artifact.kind == ArtifactKind::code && artifact_digest(entry->artifact) == entry->digest);
  require(entry->canonical_key == good.canonical_key);
}

}  // namespace
}  // namespace kiln

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<uint8_t> good = kiln::seal(kiln::good_entry(), nullptr).value();
  static const bool is_good = kiln::open_sealed(good, kiln::good_entry().key, kiln::ArtifactKind::code, {}, true).ok();
  kiln::require(is_good);
  std::vector<uint8_t> changed = good;
  for (size_t i = 0; i + 2 < size; i += 3) {
    // Most of an entry is the zeros up to its body: changes are in the manifest or the body.
    const size_t place = data[i] | (data[i + 1] & 1) << 8;
    const bool is_in_body = (data[i + 1] & 2) != 0;
    changed[is_in_body ? std::min<size_t>(KILN_PAGE_BYTES + place, changed.size() - 1) : place] = data[i + 2];
  }
  kiln::look_at(changed);
  kiln::mend_hashes(changed);
  kiln::look_at(std::move(changed));
  kiln::look_at({data, data + size});
  return 0;
}
