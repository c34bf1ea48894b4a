#pragma once

#include <cstdint>

namespace kiln {

/// The constants of Philox-2x32-10: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
inline constexpr int k_philox_rounds = 10;
inline constexpr uint32_t k_philox_multiplier = 0xD256D193;
inline constexpr uint32_t k_philox_weyl = 0x9E3779B9;  // what the key grows by from round to round

/// ScalarOp::philox: the generator's first word, of the counter under the key's lower half. The key's upper half is mixed into
/// the counter's.
constexpr uint32_t philox_word(uint64_t key, uint64_t counter) {
  auto x = static_cast<uint32_t>(counter);
  auto y = static_cast<uint32_t>(counter >> 32) ^ static_cast<uint32_t>(key >> 32);
  auto round_key = static_cast<uint32_t>(key);
  for (int round = 0; round < k_philox_rounds; ++round, round_key += k_philox_weyl) {
    const uint64_t product = uint64_t{x} * k_philox_multiplier;
    x = static_cast<uint32_t>(product >> 32) ^ round_key ^ y;
    y = static_cast<uint32_t>(product);
  }
  return x;
}

}  // namespace kiln
