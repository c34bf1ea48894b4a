#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "backends/backend.h"
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

/// The same for code that takes from its launch how many keys there are, and where a head's begin.
struct SizedDecodeSchedule : DecodeSchedule {
  static constexpr std::string_view k_implementation = "sized_decode_attention";
};

/// None where queries see a part of the keys, or there is a score expression: its addresses may depend on how many keys there are.
std::optional<SizedSpec> sized_decode_attention(const KernelSpec& spec, std::span<const uint8_t> like);

}  // namespace kiln::cpu
