#pragma once

#include <cstdint>
#include <vector>

namespace kiln {

/// What is known of an output when its elements are chosen: its extents, the pieces it is made of, and what the reference
/// costs. A row is a run along the last dim. Work is counted in products of one contraction's tight loop, so that a busy
/// machine looks at no less.
struct Demand {
  std::vector<int64_t> dims;
  int64_t tile_rows = 1, tile_columns = 64;  // of the last two dims: no piece of the schedule but a tail is smaller
  double row_work = 0;                       // once for a row of which anything is asked
  double element_work = 1'024;               // for each element
  double work = 0x1p28;                      // what all may cost together
};

/// Elements of an output taken as a matrix (the last dim its columns): all these rows by all these columns, both
/// ascending. Element (row, column) has the flat index row * dims.back() + column.
struct DemandedBlock {
  std::vector<int64_t> rows, columns;
  bool operator==(const DemandedBlock&) const = default;
};

struct DemandedBlocks {
  std::vector<DemandedBlock> blocks;
  uint64_t tiles = 0, tiles_met = 0;  // the grid of pieces of tile_rows by tile_columns, and how many hold an element
};

/// The elements that a verdict looks at for about `share` of the demand's work; all of them where that is enough.
///
/// Else rows no further apart than a tile is high, whatever its place, in each matrix of the last two dims; of these rows
/// a run of columns in every tile, as wide as the work allows: the whole row when it can be. And, where they are as
/// cheap, columns no further apart than a tile is wide, of all rows. So each tile is met, its every column by a row of
/// elements and its every row by a column of them where the work lasts; tails too, because first and last rows and
/// columns are always there. Where even one element a tile is too much, rows and then columns are left out evenly, and
/// `tiles_met` says so. A row or column lies elsewhere in each tile, as the distance is one less than the tile's extent,
/// and parts of the rows look at other columns.
/// Equal arguments give equal blocks, in the order of their columns; a block has at most 2^18 elements.
DemandedBlocks demanded_blocks(const Demand& demand, double share = 1);

}  // namespace kiln
