#include "base/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <charconv>

namespace kiln {

std::string Digest::to_hex() const {
  static constexpr char k_digits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(64);
  for (uint8_t byte : bytes) {
    hex += k_digits[byte >> 4];
    hex += k_digits[byte & 15];
  }
  return hex;
}

std::optional<Digest> Digest::from_hex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const char* first = hex.data() + 2 * i;
    auto [end, code] = std::from_chars(first, first + 2, digest.bytes[i], 16);
    if (code != std::errc() || end != first + 2) return std::nullopt;
  }
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
