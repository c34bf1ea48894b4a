#include "base/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "base/hex.h"

namespace kiln {

std::string Digest::to_hex() const { return kiln::to_hex(bytes); }

std::optional<Digest> Digest::from_hex(std::string_view hex) {
  Digest digest;
  const auto read = kiln::from_hex(hex);
  if (!read || read->size() != digest.bytes.size()) return std::nullopt;
  std::ranges::copy(*read, digest.bytes.begin());
  return digest;
}

Digest digest_of(std::span<const uint8_t> bytes) {
  // Two independent seeds: 256 bits from the 128-bit hash. The constants are the golden ratio and pi.
  static constexpr std::array<uint64_t, 2> k_seeds = {0x9e3779b97f4a7c15ull, 0x243f6a8885a308d3ull};
  Digest digest;
  for (size_t half = 0; half < 2; ++half) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(bytes.data(), bytes.size(), k_seeds[half]));
    std::memcpy(digest.bytes.data() + 16 * half, canonical.digest, 16);
  }
  return digest;
}

uint64_t checksum_of(std::span<const uint8_t> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace kiln
