#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kiln {

/// The 32-byte name of something: of a key (hash over its canonical bytes) or of an artifact (hash over its
/// bytes). Two 128-bit XXH3 hashes with different seeds. They find damage and tell entries apart; they prove
/// no origin. The store compares the canonical bytes too when a key is published again; readers go by the digest.
struct Digest {
  std::array<uint8_t, 32> bytes{};

  auto operator<=>(const Digest&) const = default;

  /// 64 lower-case hexadecimal digits.
  std::string to_hex() const;
  /// The first 12 digits, for people.
  std::string to_short() const { return to_hex().substr(0, 12); }
  /// Nothing unless `hex` is 64 hexadecimal digits.
  static std::optional<Digest> from_hex(std::string_view hex);
};

Digest digest_of(std::span<const uint8_t> bytes);
inline Digest digest_of(std::string_view text) {
  return digest_of(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

/// XXH3-64 with seed 0: the checksum in artifact headers and index slots.
uint64_t checksum_of(std::span<const uint8_t> bytes);

}  // namespace kiln

template <>
struct std::hash<kiln::Digest> {
  size_t operator()(const kiln::Digest& digest) const noexcept {
    size_t value;
    std::memcpy(&value, digest.bytes.data(), sizeof value);
    return value;
  }
};
