#pragma once

#include <optional>

#include "backends/backend.h"
#include "backends/cpu/compile/emit/launch_numbers.h"
#include "backends/cpu/compile/loops/schedule.h"

namespace kiln::cpu {

/// As LoopsSchedule, for code that takes from its launch what grows with the parallel dims: their extents, strides, offsets, and
/// integer constants, which say where one tensor ends and the next begins. What is reduced has one extent.
struct SizedLoopsSchedule : LoopsSchedule {
  static constexpr std::string_view k_implementation = "sized_loops";
  static constexpr uint32_t k_version = 1;

  uint8_t tasks_log2 = 0;  // of the grid: tasks share the points evenly, however many there are

  static auto fields(auto& s) { return std::tie(s.lane_dim, s.lanes, s.unroll, s.tasks_log2); }
  /// Errors: invalid_argument when the loops cannot be laid so.
  Status validate(const LoopsSpec& loops, const CpuTarget& target) const;
};

/// Loops (simplified ones) whose numbers were opened.
struct SizedLoops {
  LoopsSpec form;
  LaunchNumbers launch;
  BodyNumbers body;                           // its `launch` is to be set to where this lies
  std::vector<LaunchNumbers::Place> extents;  // by dim

  static SizedLoops open(const LoopsSpec& loops, const LoopsSchedule& schedule);
};

/// None where no parallel dim is the launch's, or too many numbers are.
std::optional<SizedSpec> sized_loops(const KernelSpec& spec, const CpuTarget& target);

}  // namespace kiln::cpu
