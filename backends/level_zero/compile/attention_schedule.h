#pragma once

#include "backends/attention_problem.h"
#include "backends/level_zero/compile/kernel.h"
#include "backends/level_zero/compile/tile_schedule.h"

namespace kiln::level_zero {

/// A work-group's tile of rows, and the tiles of columns that it passes over. Forward: queries, and keys. Gradients: keys and
/// queries for those of keys and values, the other way around for those of queries.
struct AttentionSchedule : TileSchedule {
  static constexpr std::string_view k_implementation = "attention";
  static constexpr uint32_t k_version = 3;

  bool by_units = false;  // products by matrix units

  static auto fields(auto& s) { return std::tie(s.sub_groups, s.rows, s.columns, s.lanes, s.by_units); }
  std::string describe() const { return (by_units ? "dpas " : "") + TileSchedule::describe(); }
  /// Work-groups.
  int64_t groups(const AttentionProblem& problem) const;
};

/// A row of this depth in local memory, in elements: whole steps of a usual sub-group, and one more, so that neighbouring rows
/// begin in different banks.
int64_t attention_pitch(int64_t depth);
/// The tiles of columns that a work-group may pass over.
int64_t most_column_tiles(const AttentionProblem& problem, const AttentionSchedule& schedule);

/// Why there is no kernel of the schedule, or ok.
Status validate(const AttentionSchedule& schedule, const AttentionProblem& problem, const DeviceFamily& family);
/// Best first. Empty where none fits the family.
std::vector<AttentionSchedule> ranked_schedules(const AttentionProblem& problem, const DeviceFamily& family,
                                                const Machine& machine);

}  // namespace kiln::level_zero
