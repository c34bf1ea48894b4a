#pragma once

#include <optional>

#include "backends/backend.h"
#include "backends/cpu/compile/emit/launch_numbers.h"
#include "backends/cpu/compile/loops/schedule.h"

namespace kiln::cpu {

/// As LoopsSchedule, for code that takes from its launch extents, but of what is laid out, strides, offsets, and integer
/// constants, which say where one tensor ends and the next begins.
struct SizedLoopsSchedule : LoopsSchedule {
  static constexpr std::string_view k_implementation = "sized_loops";
  static constexpr uint32_t k_version = 2;

  static auto fields(auto& s) { return std::tie(s.lane_dim, s.lanes, s.unroll); }
};

/// Loops (simplified ones) whose numbers were opened.
struct SizedLoops {
  LoopsSpec form;
  LaunchNumbers launch;
  LaunchNumbers::Place tasks = 0;             // they share the points evenly
  BodyNumbers body;                           // its `launch` is to be set to where this lies
  std::vector<LaunchNumbers::Place> extents;  // by dim
  std::vector<bool> is_laid_out;              // by dim: as is_laid_out(), where it is of a window

  static SizedLoops open(const LoopsSpec& loops, const LoopsSchedule& schedule, int64_t tasks);
};

/// None where no extent is the launch's, or too many numbers are. `like`: as of CompileBackend::sized.
std::optional<SizedSpec> sized_loops(const KernelSpec& spec, const CpuTarget& target, std::span<const uint8_t> like);

}  // namespace kiln::cpu
