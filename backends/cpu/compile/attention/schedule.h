#pragma once

#include <string>
#include <tuple>

#include "backends/cpu/features.h"
#include "base/expected.h"

namespace kiln::cpu {

inline constexpr uint32_t k_largest_key_block = 4096;

/// What one instruction of a product multiplies: elements, converted to f32; pairs of bf16; or registers full of these.
enum class AttentionStep : uint8_t { element, pair, tile };

/// The choices for attention, forward and backward.
struct AttentionSchedule {
  static constexpr std::string_view k_implementation = "flash_attention", k_sized = "sized_flash_attention";
  static constexpr auto k_step = AttentionStep::element;
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

/// The same choices for queries, keys and values that are multiplied by pairs of bf16, as are the probabilities, rounded.
struct Bf16AttentionSchedule : AttentionSchedule {
  static constexpr std::string_view k_implementation = "flash_attention_bf16", k_sized = "sized_flash_attention_bf16";
  static constexpr auto k_step = AttentionStep::pair;

  bool operator==(const Bf16AttentionSchedule&) const = default;
  Status validate(const CpuTarget& target) const;
  /// "pairs, queries 32 keys 128 rows 8"
  std::string describe(const CpuTarget& target) const;
};

/// The same by AMX's registers: a tile is of two rows of them by two.
struct AmxAttentionSchedule : AttentionSchedule {
  static constexpr std::string_view k_implementation = "flash_attention_amx", k_sized = "sized_flash_attention_amx";
  static constexpr auto k_step = AttentionStep::tile;

  bool operator==(const AmxAttentionSchedule&) const = default;
  Status validate(const CpuTarget& target) const;
  /// "amx, queries 64 keys 128 rows 32"
  std::string describe(const CpuTarget& target) const;
};

/// The same choices for code that takes sizes from its launches: all but the depth, and how many heads share keys.
template <typename Choices>
struct SizedAttentionSchedule : Choices {
  static constexpr std::string_view k_implementation = Choices::k_sized;

  uint32_t most_keys = 0;  // that a task of the backward pass has room for; 0: it needs none

  static auto fields(auto& s) { return std::tuple_cat(Choices::fields(s), std::tie(s.most_keys)); }
};

template <typename Choices>
inline constexpr bool k_takes_sizes = requires(Choices choices) { choices.most_keys; };

}  // namespace kiln::cpu
