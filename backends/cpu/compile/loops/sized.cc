#include "backends/cpu/compile/loops/sized.h"

#include <algorithm>
#include <bit>

#include "backends/schedule_bytes.h"
#include "base/limits.h"

namespace kiln::cpu {

namespace {

constexpr int k_most_tasks_log2 = 6;

}  // namespace

Status SizedLoopsSchedule::validate(const LoopsSpec& loops, const CpuTarget& target) const {
  KILN_RETURN_IF_ERROR(LoopsSchedule::validate(loops, target));
  if (tasks_log2 <= k_most_tasks_log2) return {};
  return invalid_argument("loops, {}: {} tasks", describe(), int64_t{1} << std::min<int>(tasks_log2, 62));
}

SizedLoops SizedLoops::open(const LoopsSpec& loops, const LoopsSchedule& schedule) {
  SizedLoops sized{loops, {}, {}, std::vector<LaunchNumbers::Place>(loops.extents.size(), 0)};
  for (size_t dim = 0; dim < loops.parallel_rank; ++dim) {
    sized.extents[dim] = sized.launch.open(sized.form.extents[dim]);
  }
  sized.body = BodyNumbers::open(sized.form.body, schedule.lane_dim, sized.launch);
  return sized;
}

std::optional<SizedSpec> sized_loops(const KernelSpec& spec, const CpuTarget& target) {
  const LoopsSpec loops = simplified(std::get<LoopsSpec>(spec.kernel));
  const LoopsSchedule best = ranked_schedules(loops, target).front();
  const auto wanted_tasks = static_cast<uint64_t>(loops_grid(loops, best).tasks);
  SizedLoopsSchedule schedule{best};
  schedule.tasks_log2 = static_cast<uint8_t>(std::min<int>(std::bit_width(wanted_tasks - 1), k_most_tasks_log2));
  SizedLoops sized = SizedLoops::open(loops, schedule);
  const auto is_open = [](LaunchNumbers::Place place) { return place != 0; };
  if (std::ranges::none_of(sized.extents, is_open)) return std::nullopt;
  if (sized.launch.carried().size() > limits::k_launch_extents) return std::nullopt;
  return sized_spec(spec, std::move(sized.form), sized.launch,
                    {encode_choices(schedule), "sized, " + schedule.describe()});
}

}  // namespace kiln::cpu
