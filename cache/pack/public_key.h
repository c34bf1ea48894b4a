#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include "base/expected.h"

namespace kiln {

using Signature = std::array<uint8_t, 64>;

/// Who signed: the public half of an Ed25519 key.
struct PublicKey {
  std::array<uint8_t, 32> bytes{};

  auto operator<=>(const PublicKey&) const = default;

  /// The first 16 hexadecimal digits, for people.
  std::string to_short() const;
  /// Whether the other half made this signature of this message.
  bool has_signed(std::span<const uint8_t> message, const Signature& signature) const;

  /// From a file as `kiln key create` or `openssl pkey -pubout` writes it. Errors: not_found, permission_denied for a file
  /// that others than its owner and root may write, invalid_argument when it is no Ed25519 key.
  static Expected<PublicKey> read(const std::string& path);
};

}  // namespace kiln
