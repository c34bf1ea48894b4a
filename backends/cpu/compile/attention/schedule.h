#pragma once

#include <string>
#include <tuple>

#include "backends/cpu/features.h"
#include "base/expected.h"

namespace kiln::cpu {

inline constexpr uint32_t k_largest_key_block = 4096;

/// The choices for attention, forward and backward.
struct AttentionSchedule {
  static constexpr std::string_view k_implementation = "flash_attention";
  static constexpr uint32_t k_version = 1;

  uint32_t query_vectors = 2;  // queries of a block, in vectors
  uint32_t key_block = 128;    // keys between two updates of the running maximum; a multiple of tile_rows
  uint32_t tile_rows = 8;

  bool operator==(const AttentionSchedule&) const = default;
  static auto fields(auto& s) { return std::tie(s.query_vectors, s.key_block, s.tile_rows); }
  /// Errors: invalid_argument when no kernel of the target can be made so.
  Status validate(const CpuTarget& target) const;
  /// "queries 32 keys 128 rows 8"
  std::string describe(const CpuTarget& target) const;
};

}  // namespace kiln::cpu
