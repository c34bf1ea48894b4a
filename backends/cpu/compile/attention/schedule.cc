#include "backends/cpu/compile/attention/schedule.h"

#include <fmt/format.h>

namespace kiln::cpu {

Status AttentionSchedule::validate(const CpuTarget& target) const {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("attention, {}: {}", describe(target), why);
  };
  if (query_vectors == 0 || tile_rows == 0 || key_block == 0) return refuse("a zero extent");
  if (key_block > k_largest_key_block) return refuse("the block of keys is too large");
  if (key_block % tile_rows != 0) return refuse("the block of keys is no number of tiles");
  // A tile's sums; what is multiplied into them may be read from memory.
  const uint32_t registers = target.has(Feature::avx512) ? 32 : 16;
  if (query_vectors > registers / tile_rows) return refuse("a tile needs more registers");
  return {};
}

std::string AttentionSchedule::describe(const CpuTarget& target) const {
  const int64_t lanes = target.vector_bytes / 4;
  return fmt::format("queries {} keys {} rows {}", query_vectors * lanes, key_block, tile_rows);
}

}  // namespace kiln::cpu
