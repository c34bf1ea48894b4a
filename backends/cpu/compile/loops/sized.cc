#include "backends/cpu/compile/loops/sized.h"

#include <algorithm>

#include "backends/schedule_bytes.h"
#include "base/limits.h"

namespace kiln::cpu {

SizedLoops SizedLoops::open(const LoopsSpec& loops, const LoopsSchedule& schedule, int64_t tasks) {
  SizedLoops sized{loops, {}, 0, {}, std::vector<LaunchNumbers::Place>(loops.extents.size(), 0)};
  sized.tasks = sized.launch.carry(tasks);
  for (size_t dim = 0; dim < loops.extents.size(); ++dim) {
    if (is_laid_out(loops, schedule, static_cast<int>(dim))) continue;
    sized.extents[dim] = sized.launch.open(sized.form.extents[dim]);
  }
  sized.body = BodyNumbers::open(sized.form.body, schedule.lane_dim, sized.launch);
  return sized;
}

std::optional<SizedSpec> sized_loops(const KernelSpec& spec, const CpuTarget& target) {
  const LoopsSpec loops = simplified(std::get<LoopsSpec>(spec.kernel));
  const LoopsSchedule best = ranked_schedules(loops, target).front();
  SizedLoops sized = SizedLoops::open(loops, best, loops_grid(loops, best).tasks);
  const auto is_open = [](LaunchNumbers::Place place) { return place != 0; };
  if (std::ranges::none_of(sized.extents, is_open)) return std::nullopt;
  if (sized.launch.carried().size() > limits::k_launch_extents) return std::nullopt;
  const SizedLoopsSchedule schedule{best};
  return sized_spec(spec, std::move(sized.form), sized.launch,
                    {encode_choices(schedule), "sized, " + schedule.describe()});
}

}  // namespace kiln::cpu
