#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/compile/emit/emitter.h"
#include "backends/cpu/features.h"

namespace kiln::cpu {

/// What an emitter says of the code it wrote, besides the code.
struct LaunchShape {
  uint64_t tasks = 1;  // 0: as many as the first number says that a launch carries
  uint64_t workspace_bytes = 0;
};

/// One way to make a kind of kernel's code: a row in the kind's list, best first, the one that claims most last.
/// The functions get valid specs (kiln::validate) of their own kind only.
struct Implementation {
  std::string_view name;  // the implementation that its schedules' bytes name (backends/schedule_bytes.h)
  /// Why it has no code for the spec, or ok. Says nothing of speed.
  Status (*claims)(const KernelSpec& spec, const CpuTarget& target);
  /// Best first. None where another row is sure to be faster.
  std::vector<Schedule> (*schedules)(const KernelSpec& spec, const CpuTarget& target, const Machine& machine);
  /// Writes the function `entry` (runtime/entry.h) into the emitter's module, for any schedule that fits the spec.
  /// Errors: invalid_argument for bytes that are no schedule of this row, or one that does not fit.
  Expected<LaunchShape> (*emit)(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> schedule);
  /// Of a row whose code takes sizes from its launch: how it serves the spec (CompileBackend::sized). Null for other rows.
  std::optional<SizedSpec> (*sized)(const KernelSpec& spec, const CpuTarget& target,
                                    std::span<const uint8_t> like) = nullptr;
};

/// Implementation::schedules of a row whose code is asked for where sizes vary, and never stands beside others.
inline std::vector<Schedule> no_schedules(const KernelSpec&, const CpuTarget&, const Machine&) { return {}; }

}  // namespace kiln::cpu
