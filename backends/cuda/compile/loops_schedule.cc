#include "backends/cuda/compile/loops_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <set>

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
constexpr uint32_t k_most_ahead = 8;
constexpr uint32_t k_most_shares = 128;

/// The longest run that divides the dim.
uint32_t longest_whole_run(const KernelSpec& spec, const LoopsSpec& loops, size_t dim) {
  uint32_t run = longest_run(spec, loops.body, dim);
  while (loops.extents[dim] % run != 0) run /= 2;
  return run;
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

double count_where_it_moves(const LoopsSpec& loops, const Access& access) {
  double count = 1;
  for (size_t d = 0; d < loops.extents.size(); ++d) {
    if (access.strides[d] != 0 || !access.indirect.empty()) count *= static_cast<double>(loops.extents[d]);
  }
  return count;
}

/// Prices schedules of one kernel, in microseconds.
class Estimate {
 public:
  Estimate(const KernelSpec& spec, const LoopsSpec& loops, const Machine& machine)
      : m_spec(spec),
        m_loops(loops),
        m_cores(machine.cores == 0 ? 100 : machine.cores),
        m_shared_bytes(static_cast<double>(machine.second_level_bytes)),
        m_rows(static_cast<double>(product(std::span(loops.extents).first(loops.parallel_rank)))),
        m_points(static_cast<double>(product(std::span(loops.extents).subspan(loops.parallel_rank)))) {
    for (const Stage& stage : loops.stages) m_passes += stage.per_row ? 0 : 1;
  }

  /// What is started together and used together takes one latency; a core's threads wait at once.
  double operator()(const LoopsSchedule& s) const {
    const double threads = m_rows * s.members * s.shares / (is_reduced() ? 1 : s.run * s.ahead);
    const double blocks = std::ceil(threads / s.threads());
    const double cores = std::min(blocks, m_cores);
    const double waves = std::ceil(blocks * s.threads() / (cores * k_resident_threads));
    const double met = m_points / s.members / (is_reduced() ? s.run : 1);  // by each thread
    const double rounds = s.shares > 1 ? m_points / s.shares : m_passes * std::ceil(met / (is_reduced() ? s.ahead : 1));
    const double instructions = m_rows * m_points * s.shares * (k_of_step / s.run + operations(s));
    const double meetings =
        s.members == 1 ? 0 : static_cast<double>(m_loops.reductions.size()) * std::bit_width(s.members);
    return waves * (rounds * k_latency_us + meetings * k_meeting_us) + moved(s, cores) / (cores * k_bytes_of_core) +
           instructions / (cores * k_instructions_of_core);
  }

 private:
  // Of devices of this kind, per microsecond and core where it does not say otherwise.
  static constexpr double k_near_bytes = 128 << 10, k_shared_bytes = 32 << 20, k_cost_of_shared = 0.4;
  static constexpr double k_resident_threads = 1024, k_latency_us = 0.7, k_meeting_us = 0.05, k_bytes_of_core = 24e3,
                          k_instructions_of_core = 190e3, k_of_step = 12, k_sector_bytes = 32;

  bool is_reduced() const { return m_loops.extents.size() > m_loops.parallel_rank; }
  /// Who shares places out looks at the place of each point and computes few.
  double operations(const LoopsSchedule& s) const {
    return s.shares > 1 ? 0 : static_cast<double>(m_loops.body.exprs.size()) * m_passes;
  }

  /// Memory moves whole sectors, of which neighbouring threads should use all. Later passes read again; where the rows that
  /// are being worked on fit, from a cache.
  double moved(const LoopsSchedule& s, double cores) const {
    const size_t dims = s.members_are_neighbours ? m_loops.extents.size() : m_loops.parallel_rank;
    double bytes = 0, read = 0;
    for (const Access& access : m_loops.body.accesses) {
      const BufferSpec& buffer = m_spec.buffers[access.buffer];
      const auto size = static_cast<double>(size_of(buffer.dtype));
      const double all = count_where_it_moves(m_loops, access) * size;
      bytes += all * (dims == 0 ? 1 : waste(access, dims - 1, size, s));
      if (buffer.role != BufferRole::output) read += all;
    }
    const double rows = std::min(m_rows / cores, k_resident_threads / s.members);  // of a core, at a time
    const double shared = m_shared_bytes == 0 ? k_shared_bytes : m_shared_bytes;
    const double held = read / m_rows * rows;
    const double again = held <= k_near_bytes ? 0 : held * cores <= shared ? k_cost_of_shared : 1;
    return bytes + read * again * std::max(0.0, m_passes - 1);
  }

  double waste(const Access& access, size_t dim, double size, const LoopsSchedule& s) const {
    const auto stride = static_cast<double>(std::abs(access.strides[dim]));
    if (stride == 0) return 1;
    const double neighbours = s.members_are_neighbours ? s.members * s.run : s.columns * (is_reduced() ? 1 : s.run);
    const double together = std::min(neighbours, static_cast<double>(m_loops.extents[dim]));
    const double apart = std::min(stride, k_sector_bytes / size);
    return std::max({1.0, apart, k_sector_bytes / (together * size)});
  }

  const KernelSpec& m_spec;
  const LoopsSpec& m_loops;
  double m_cores, m_shared_bytes, m_rows, m_points, m_passes = 0;
};

/// As many steps as have enough bytes under way, where there are so many and the code stays short.
uint32_t steps_ahead(const KernelSpec& spec, const LoopsSpec& loops, int64_t steps, uint32_t run) {
  constexpr size_t k_bytes = 32, k_operations = 256;
  const size_t last = loops.extents.size() - 1;
  size_t bytes = 0;
  for (const Access& access : loops.body.accesses) {
    const BufferSpec& buffer = spec.buffers[access.buffer];
    if (buffer.role == BufferRole::input && access.strides[last] != 0) bytes += size_of(buffer.dtype) * run;
  }
  uint32_t ahead = 1;
  while (bytes > 0 && ahead < k_most_ahead && ahead * 2 <= steps && ahead * bytes < k_bytes &&
         ahead * 2 * run * loops.body.exprs.size() <= k_operations) {
    ahead *= 2;
  }
  return ahead;
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

std::optional<ExprId> place_of_stores(const LoopsSpec& loops) {
  if (loops.stages.size() != 1 || !loops.reductions.empty() || !is_ordered(loops)) return std::nullopt;
  std::optional<ExprId> place;
  std::set<uint32_t> stored;
  for (const Store& store : loops.stages.front().stores) {
    const Access& access = loops.body.accesses[store.access];
    if (access.indirect.size() != 1) return std::nullopt;
    const IndirectTerm& term = access.indirect.front();
    int64_t reach = 0;
    for (size_t d = loops.parallel_rank; d < loops.extents.size(); ++d) {
      reach += std::abs(access.strides[d]) * (loops.extents[d] - 1);
    }
    if (reach >= std::abs(term.stride) || (place && *place != term.index)) return std::nullopt;
    place = term.index;
    if (!stored.insert(access.buffer).second) return std::nullopt;
  }
  const auto is_of_stored = [&](ExprId id) {
    const ScalarNode& node = loops.body.exprs[id];
    return node.op == ScalarOp::load && stored.contains(loops.body.accesses[node.slot].buffer);
  };
  if (std::ranges::any_of(needed_by(loops.body, roots_of(loops, loops.stages.front())), is_of_stored))
    return std::nullopt;
  return place;
}

std::vector<LoopsSchedule> ranked_schedules(const KernelSpec& spec, const LoopsSpec& loops, const Machine& machine) {
  constexpr size_t k_of_form = 2;
  const int64_t points = product(std::span(loops.extents).subspan(loops.parallel_rank));
  const bool is_reduced = loops.extents.size() > loops.parallel_rank;
  const Estimate estimate(spec, loops, machine);
  std::vector<LoopsSchedule> ranked;
  // The best of each form: a model that is wrong about one leaves others to choose from.
  const auto add_best = [&](std::vector<LoopsSchedule> form, size_t count) {
    for (LoopsSchedule& s : form) {
      if (loops.extents.empty()) continue;
      const int64_t steps = is_reduced ? points / (s.members * s.run) : product(loops.extents) / s.run;
      s.ahead = steps_ahead(spec, loops, steps, s.run);
    }
    std::ranges::stable_sort(form, {}, estimate);
    form.resize(std::min(form.size(), count));
    ranked.insert(ranked.end(), form.begin(), form.end());
  };
  std::vector<LoopsSchedule> threads;
  if (!is_reduced) {
    for (uint32_t run = longest_run_of_points(spec, loops); run >= 1; run /= 2) threads.push_back({.run = run});
    const size_t all = threads.size();
    add_best(std::move(threads), all);
  } else {
    const uint32_t most_shares = place_of_stores(loops) ? k_most_shares : 1;
    for (const uint32_t columns : {k_threads, k_threads / 4}) {
      for (uint32_t shares = 1; shares <= most_shares && shares <= points; shares *= 2) {
        threads.push_back({.columns = columns, .shares = shares});
      }
    }
    add_best(std::move(threads), most_shares > 1 ? k_of_form : 1);
  }
  if (is_reduced && !is_ordered(loops) && points > 1) {
    const uint32_t longest = longest_whole_run(spec, loops, loops.extents.size() - 1);
    for (const uint32_t run : {longest, 1u}) {
      std::vector<LoopsSchedule> rows;
      for (uint32_t members = 2; members <= k_widest_group && members / 2 < points; members *= 2) {
        const uint32_t columns = std::max(k_threads / members, 1u);
        rows.push_back({.members = members, .columns = columns, .run = run, .members_are_neighbours = true});
      }
      add_best(std::move(rows), k_of_form);
      if (longest == 1) break;
    }
    std::vector<LoopsSchedule> columns;
    for (const uint32_t count : {8u, 16u, 32u}) {
      for (uint32_t members = k_warp / count * 2; members * count <= k_most_threads && members <= points;
           members *= 2) {
        if (members > 1) columns.push_back({.members = members, .columns = count});
      }
    }
    if (loops.parallel_rank > 0) add_best(std::move(columns), k_of_form);
  }
  std::ranges::stable_sort(ranked, {}, estimate);
  return ranked;
}

Status LoopsSchedule::validate(const KernelSpec& spec, const LoopsSpec& loops) const {
  const auto refuse = [&](std::string_view why) { return invalid_argument("cuda loops, {}: {}", describe(), why); };
  const auto is_power = [](uint32_t value, uint32_t most) { return std::has_single_bit(value) && value <= most; };
  if (!is_power(members, k_widest_group) || !is_power(columns, k_most_threads) || !is_power(run, k_longest_run) ||
      !is_power(ahead, k_most_ahead) || !is_power(shares, k_most_shares)) {
    return refuse("no such numbers of points, threads or elements");
  }
  if (threads() > k_most_threads || threads() % k_warp != 0) return refuse("no block of 32 to 1024 threads");
  const bool is_reduced = loops.extents.size() > loops.parallel_rank;
  if (members > 1) {
    if (!is_reduced) return refuse("nothing is reduced that threads could share");
    if (is_ordered(loops)) return refuse("reduced points must be met in order");
  } else if (members_are_neighbours) {
    return refuse("neighbours of one member");
  }
  if (shares > 1 && !(is_reduced && place_of_stores(loops))) return refuse("nothing says where stores may meet");
  if (run == 1) return {};
  const bool is_shared = members > 1 && members_are_neighbours;
  const uint32_t longest = !is_reduced ? longest_run_of_points(spec, loops)
                           : is_shared ? longest_whole_run(spec, loops, loops.extents.size() - 1)
                                       : 1;
  return run <= longest ? Status() : refuse("no runs of that length");
}

std::string LoopsSchedule::describe() const {
  return fmt::format("{} points of {} threads{}, runs of {}{}{}", columns, members,
                     members > 1 && !members_are_neighbours ? " by columns" : "", run,
                     ahead > 1 ? fmt::format(", {} ahead", ahead) : "",
                     shares > 1 ? fmt::format(", {} shares", shares) : "");
}

}  // namespace kiln::cuda
