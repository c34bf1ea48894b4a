#include "backends/cuda/compile/loops_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "backends/loops_stages.h"
#include "frontend/kernel/affine.h"

namespace kiln::cuda {
namespace {

constexpr int64_t k_widest_access_bytes = 16;
constexpr uint32_t k_longest_run = 8;
constexpr uint32_t k_threads = 256;
constexpr uint32_t k_widest_group = 512;
constexpr uint32_t k_warp = 32;
constexpr uint32_t k_most_threads = 1024;  // of a block

/// Weighs what is adjacent along a dim, by the bytes that move through it.
int64_t adjacent_bytes(const KernelSpec& spec, const LoopsSpec& loops, size_t dim) {
  int64_t bytes = 0;
  for (const Access& access : loops.body.accesses) {
    if (access.strides[dim] == 1) bytes += static_cast<int64_t>(size_of(spec.buffers[access.buffer].dtype));
  }
  return bytes;
}

/// The longest run that divides the dim.
uint32_t longest_whole_run(const KernelSpec& spec, const LoopsSpec& loops, size_t dim) {
  uint32_t run = longest_run(spec, loops.body, dim);
  while (loops.extents[dim] % run != 0) run /= 2;
  return run;
}

void add(std::vector<LoopsSchedule>& schedules, LoopsSchedule schedule) {
  if (std::find(schedules.begin(), schedules.end(), schedule) == schedules.end()) schedules.push_back(schedule);
}

void add_threads(std::vector<LoopsSchedule>& schedules, uint32_t run) {
  for (; run >= 1; run /= 2) add(schedules, {.members = 1, .columns = k_threads, .run = run});
}

void add_rows(std::vector<LoopsSchedule>& schedules, int64_t points, int64_t rows, uint32_t run) {
  const auto wanted = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(points / (4 * run), 1)));
  uint32_t members = static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 8, k_widest_group));
  // Few long rows: as many threads as there are.
  if (rows < 512)
    members = static_cast<uint32_t>(std::min<uint64_t>(std::bit_ceil(static_cast<uint64_t>(points)), k_widest_group));
  members = std::max(members, 2u);
  for (const uint32_t count : {members, std::min(members * 2, k_widest_group), std::max(members / 2, 2u)}) {
    for (const uint32_t length : {run, 1u}) {
      add(schedules, {.members = count,
                      .columns = std::max(k_threads / count, 1u),
                      .run = length,
                      .members_are_neighbours = true});
    }
  }
}

bool is_ordered(const LoopsSpec& loops) {
  return std::ranges::any_of(loops.stages, [&](const Stage& stage) { return kiln::is_ordered(loops, stage); });
}

/// The longest run of parallel points that a thread may make, where no dim is reduced.
uint32_t longest_run_of_points(const KernelSpec& spec, const LoopsSpec& loops) {
  const bool in_runs = loops.parallel_rank > 0 && !is_ordered(loops) && loops.reductions.empty() &&
                       std::ranges::none_of(loops.stages, [](const Stage& stage) { return stage.per_row; });
  return in_runs ? longest_whole_run(spec, loops, loops.parallel_rank - 1) : 1;
}

}  // namespace

bool is_run_of(const Access& access, size_t dim, int64_t length) {
  if (access.strides[dim] != 1 || !access.indirect.empty() || access.offset % length != 0) return false;
  for (size_t d = 0; d < access.strides.size(); ++d) {
    if (d != dim && access.strides[d] % length != 0) return false;
  }
  return true;
}

uint32_t longest_run(const KernelSpec& spec, const Body& body, size_t dim) {
  int64_t widest = 0;
  for (const Access& access : body.accesses) {
    if (access.strides[dim] != 1) continue;
    widest = std::max(widest, static_cast<int64_t>(size_of(spec.buffers[access.buffer].dtype)));
  }
  if (widest == 0) return 1;
  auto run = static_cast<uint32_t>(std::min<int64_t>(k_widest_access_bytes / widest, k_longest_run));
  const auto helps = [&] {
    return std::any_of(body.accesses.begin(), body.accesses.end(),
                       [&](const Access& access) { return is_run_of(access, dim, run); });
  };
  while (run > 1 && !helps()) run /= 2;
  return run;
}

std::vector<LoopsSchedule> ranked_schedules(const KernelSpec& spec, const LoopsSpec& loops) {
  std::vector<LoopsSchedule> schedules;
  const size_t rank = loops.extents.size();
  const auto parallel = std::span(loops.extents).first(loops.parallel_rank);
  const auto reduced = std::span(loops.extents).subspan(loops.parallel_rank);
  if (reduced.empty()) {
    add_threads(schedules, longest_run_of_points(spec, loops));
    return schedules;
  }
  const int64_t points = product(reduced), rows = product(parallel);
  if (!is_ordered(loops) && points > 1) {
    const int64_t along_rows = adjacent_bytes(spec, loops, rank - 1);
    const int64_t along_columns = parallel.empty() ? 0 : adjacent_bytes(spec, loops, loops.parallel_rank - 1);
    const uint32_t members =
        static_cast<uint32_t>(std::clamp<uint64_t>(std::bit_floor(static_cast<uint64_t>(points)), 2, 16));
    if (along_columns > along_rows) add(schedules, {.members = members, .columns = 32});
    if (along_columns <= along_rows || rows < 4096)
      add_rows(schedules, points, rows, longest_whole_run(spec, loops, rank - 1));
  }
  add_threads(schedules, 1);
  return schedules;
}

Status LoopsSchedule::validate(const KernelSpec& spec, const LoopsSpec& loops) const {
  const auto refuse = [&](std::string_view why) { return invalid_argument("cuda loops, {}: {}", describe(), why); };
  const auto is_power = [](uint32_t value, uint32_t most) { return std::has_single_bit(value) && value <= most; };
  if (!is_power(members, k_widest_group) || !is_power(columns, k_most_threads) || !is_power(run, k_longest_run)) {
    return refuse("no such numbers of points, threads or elements");
  }
  if (threads() > k_most_threads || threads() % k_warp != 0) return refuse("no block of 32 to 1024 threads");
  const bool is_reduced = loops.extents.size() > loops.parallel_rank;
  if (members > 1) {
    if (!is_reduced) return refuse("nothing is reduced that threads could share");
    if (is_ordered(loops)) return refuse("reduced points must be met in order");
    if (!members_are_neighbours && columns < k_warp) return refuse("a warp that is not of one member");
  } else if (members_are_neighbours) {
    return refuse("neighbours of one member");
  }
  if (run == 1) return {};
  const bool is_shared = members > 1 && members_are_neighbours;
  const uint32_t longest = !is_reduced ? longest_run_of_points(spec, loops)
                           : is_shared ? longest_whole_run(spec, loops, loops.extents.size() - 1)
                                       : 1;
  return run <= longest ? Status() : refuse("no runs of that length");
}

std::string LoopsSchedule::describe() const {
  return fmt::format("{} points of {} threads{}, runs of {}", columns, members,
                     members > 1 && !members_are_neighbours ? " by columns" : "", run);
}

}  // namespace kiln::cuda
