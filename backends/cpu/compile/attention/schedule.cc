#include "backends/cpu/compile/attention/schedule.h"

#include <fmt/format.h>

namespace kiln::cpu {

namespace {

Status refused(const std::string& schedule, std::string_view why) {
  return invalid_argument("attention, {}: {}", schedule, why);
}

}  // namespace

Status AttentionSchedule::validate(const CpuTarget& target) const {
  const auto refuse = [&](std::string_view why) { return refused(describe(target), why); };
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

Status Bf16AttentionSchedule::validate(const CpuTarget& target) const {
  KILN_RETURN_IF_ERROR(AttentionSchedule::validate(target));
  if (tile_rows % 2 != 0) return refused(describe(target), "a tile has no whole pairs of keys");
  return {};
}

Status AmxAttentionSchedule::validate(const CpuTarget& target) const {
  const auto refuse = [&](std::string_view why) { return refused(describe(target), why); };
  constexpr uint32_t k_rows = 32, k_most_vectors = 16;
  if (query_vectors == 0 || key_block == 0) return refuse("a zero extent");
  if (tile_rows != k_rows) return refuse("a tile is not two registers high");
  if (key_block > k_largest_key_block) return refuse("the block of keys is too large");
  if (key_block % k_rows != 0) return refuse("the block of keys is no number of tiles");
  if (query_vectors % 2 != 0 || query_vectors > k_most_vectors) return refuse("the queries are no number of tiles");
  return {};
}

std::string AmxAttentionSchedule::describe(const CpuTarget& target) const {
  return "amx, " + AttentionSchedule::describe(target);
}

std::string Bf16AttentionSchedule::describe(const CpuTarget& target) const {
  return "pairs, " + AttentionSchedule::describe(target);
}

}  // namespace kiln::cpu
