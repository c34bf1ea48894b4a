#include "backends/cpu/compile/loops/sized.h"

#include <algorithm>
#include <cstdlib>

#include "backends/schedule_bytes.h"
#include "base/limits.h"

namespace kiln::cpu {

namespace {

/// Whether a reduced dim is of a window, whose extents say more than how large a tensor is: parallel dims step over it.
bool is_of_window(const LoopsSpec& loops, size_t dim) {
  return std::ranges::any_of(loops.body.accesses, [&](const Access& access) {
    const int64_t step = std::abs(access.strides[dim]);
    const auto parallel = std::span(access.strides).first(loops.parallel_rank);
    return step != 0 && std::ranges::any_of(parallel, [&](int64_t stride) { return std::abs(stride) >= step; });
  });
}

}  // namespace

SizedLoops SizedLoops::open(const LoopsSpec& loops, const LoopsSchedule& schedule, int64_t tasks) {
  SizedLoops sized{loops,
                   {},
                   0,
                   {},
                   std::vector<LaunchNumbers::Place>(loops.extents.size(), 0),
                   std::vector<bool>(loops.extents.size())};
  sized.tasks = sized.launch.carry_tasks(tasks);
  for (size_t dim = loops.extents.size(); dim-- > loops.parallel_rank;) {
    if (!kiln::cpu::is_laid_out(loops, schedule, static_cast<int>(dim)) || !is_of_window(loops, dim)) break;
    sized.is_laid_out[dim] = true;
  }
  for (size_t dim = 0; dim < loops.extents.size(); ++dim) {
    if (!sized.is_laid_out[dim]) sized.extents[dim] = sized.launch.open(sized.form.extents[dim]);
  }
  sized.body = BodyNumbers::open(sized.form.body, schedule.lane_dim, sized.launch);
  return sized;
}

std::optional<SizedSpec> sized_loops(const KernelSpec& spec, const CpuTarget& target, std::span<const uint8_t> like) {
  const LoopsSpec loops = simplified(std::get<LoopsSpec>(spec.kernel));
  SizedLoopsSchedule schedule;
  if (like.empty()) {
    const auto ranked = ranked_schedules(loops, target);
    schedule = {*std::ranges::find(ranked, -1, &LoopsSchedule::unroll_dim)};  // there always is one
  } else {
    const auto given = parse_choices<SizedLoopsSchedule>(like);
    if (!given.ok() || !given->validate(loops, target).ok()) return std::nullopt;
    schedule = *given;
  }
  SizedLoops sized = SizedLoops::open(loops, schedule, loops_grid(loops, schedule).tasks);
  const auto is_open = [](LaunchNumbers::Place place) { return place != 0; };
  if (std::ranges::none_of(sized.extents, is_open)) return std::nullopt;
  if (sized.launch.carried().size() > limits::k_launch_extents) return std::nullopt;
  return sized_spec(spec, std::move(sized.form), sized.launch,
                    {encode_choices(schedule), "sized, " + schedule.describe()});
}

}  // namespace kiln::cpu
