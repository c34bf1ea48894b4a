#pragma once

#include <memory>

#include "backends/level_zero/compile/attention_tiles.h"

namespace kiln::level_zero {

/// How the forward pass multiplies: a work-group's queries with keys, and weights with values.
class AttentionProducts {
 public:
  virtual ~AttentionProducts() = default;
  // By the whole group; what is read is complete after a barrier.
  virtual void fill_queries(const AttentionTensor& queries, Id first) = 0;
  virtual void fill_keys_and_values(const AttentionTensor& keys, const AttentionTensor& values, Id first) = 0;
  /// The sub-group's queries times the keys.
  virtual AttentionTiles::Block products() = 0;
  /// sums += weights, a column for each key, times the values.
  virtual void accumulate(const AttentionTiles::Block& sums, const AttentionTiles::Block& weights) = 0;

  /// As the schedule says.
  static std::unique_ptr<AttentionProducts> create(Emitter& emitter, AttentionTiles& tiles, const AttentionSpec& spec,
                                                   const AttentionSchedule& schedule, const DeviceFamily& family);
};

}  // namespace kiln::level_zero
