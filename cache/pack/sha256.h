#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace kiln {

using Sha256 = std::array<uint8_t, 32>;

/// The hash that signatures stand on: unlike a Digest, nobody can make other bytes of the same one.
Sha256 sha256_of(std::span<const uint8_t> bytes);

}  // namespace kiln
