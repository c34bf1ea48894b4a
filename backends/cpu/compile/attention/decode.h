#pragma once

#include <string>
#include <tuple>

#include "backends/cpu/features.h"
#include "base/expected.h"

namespace kiln::cpu {

/// The choices for attention of few queries.
struct DecodeSchedule {
  static constexpr std::string_view k_implementation = "decode_attention";
  static constexpr uint32_t k_version = 1;

  uint32_t key_block = 128;  // keys between two updates of the running maximum; a multiple of a vector's lanes

  bool operator==(const DecodeSchedule&) const = default;
  static auto fields(auto& s) { return std::tie(s.key_block); }
  /// Errors: invalid_argument when no kernel of the target can be made so.
  Status validate(const CpuTarget& target) const;
  /// "decode keys 128"
  std::string describe() const;
};

}  // namespace kiln::cpu
