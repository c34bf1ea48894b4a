#pragma once

#include <string>
#include <string_view>
#include <tuple>

#include "backends/level_zero/target.h"
#include "base/expected.h"

namespace kiln::level_zero {

/// How a work-group shares a tile: its sub-groups have rows one above the other, the lanes of one have columns in turn.
struct TileSchedule {
  uint8_t sub_groups = 8;  // of a work-group
  uint8_t rows = 8;        // of a sub-group
  uint8_t columns = 4;     // of a lane
  uint8_t lanes = k_sub_group_size;

  bool operator==(const TileSchedule&) const = default;
  static auto fields(auto& s) { return std::tie(s.sub_groups, s.rows, s.columns); }
  int64_t tile_rows() const { return int64_t{sub_groups} * rows; }
  int64_t tile_columns() const { return int64_t{columns} * lanes; }
  uint32_t group_size() const { return uint32_t{sub_groups} * lanes; }
  std::string describe() const;
};

/// invalid_argument: why a kernel of the kind cannot be laid out so.
Status refused(std::string_view kind, const TileSchedule& schedule, std::string_view why);
/// refused() where no work-group can be of such a tile.
Status validate(std::string_view kind, const TileSchedule& schedule);

}  // namespace kiln::level_zero
