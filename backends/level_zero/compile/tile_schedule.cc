#include "backends/level_zero/compile/tile_schedule.h"

#include <fmt/format.h>

namespace kiln::level_zero {

std::string TileSchedule::describe() const {
  return fmt::format("tile {}x{}, {} sub-groups of {} rows", tile_rows(), tile_columns(), sub_groups, rows);
}

Status refused(std::string_view kind, const TileSchedule& schedule, std::string_view why) {
  return invalid_argument("level zero {}, {}: {}", kind, schedule.describe(), why);
}

Status validate(std::string_view kind, const TileSchedule& schedule) {
  constexpr int k_most_sub_groups = 16;
  if (schedule.sub_groups == 0 || schedule.rows == 0 || schedule.columns == 0) {
    return refused(kind, schedule, "a zero extent");
  }
  if (schedule.sub_groups > k_most_sub_groups) return refused(kind, schedule, "the work-group is too large");
  return {};
}

}  // namespace kiln::level_zero
