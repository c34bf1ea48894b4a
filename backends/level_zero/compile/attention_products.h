#pragma once

#include <memory>

#include "backends/level_zero/compile/attention_tiles.h"

namespace kiln::level_zero {

/// How a pass multiplies: tiles of rows and of columns in local memory, by what multiplies them.
class AttentionProducts {
 public:
  enum class Tile : size_t {};
  enum class Sums : size_t {};
  /// What rows of a tensor are to the products that they take part in: a product's rows, the columns that it multiplies these
  /// with, or what weights, a row's for each column, are multiplied with.
  struct Uses {
    bool as_rows = false, as_columns = false, by_weights = false;
  };

  virtual ~AttentionProducts() = default;
  /// A work-group's rows, or as many as it has columns.
  virtual Tile tile(int64_t depth, Uses uses) = 0;
  /// By the whole group; what is read is complete after a barrier.
  virtual void fill(Tile tile, const AttentionTensor& tensor, Id first) = 0;
  /// The sub-group's rows times the columns.
  virtual AttentionTiles::Block products(Tile rows, Tile columns) = 0;
  /// Zeros: the sub-group's rows of this depth.
  virtual Sums sums(int64_t depth) = 0;
  /// sums += weights times the tile.
  virtual void accumulate(Sums sums, const AttentionTiles::Block& weights, Tile tile) = 0;
  /// Each row times its factor.
  virtual void scale(Sums sums, const Ids& factors) = 0;
  virtual AttentionTiles::Block values(Sums sums) = 0;

  /// As the schedule says.
  static std::unique_ptr<AttentionProducts> create(Emitter& emitter, AttentionTiles& tiles, DType dtype,
                                                   const AttentionSchedule& schedule, const DeviceFamily& family);
};

}  // namespace kiln::level_zero
