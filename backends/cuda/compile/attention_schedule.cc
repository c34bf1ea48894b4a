#include "backends/cuda/compile/attention_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "backends/cuda/compile/texts.h"
#include "backends/schedule_bytes.h"
#include "base/limits.h"

namespace kiln::cuda {
namespace {

using AttentionKind = AttentionSchedule::Kind;
using Row = AttentionImplementation::Row;

constexpr std::array k_simple_rows{
    Row{{AttentionKind::simple, 64, 64, 1}, 1.0},
    Row{{AttentionKind::simple, 32, 32, 1}, 0.6},
    Row{{AttentionKind::simple, 16, 16, 1}, 0.25},
};

// Registers hold 16 rows of results a warp, and as many of scores.
constexpr std::array k_mma_rows{
    Row{{AttentionKind::mma, 128, 64, 2}, 1.0}, Row{{AttentionKind::mma, 64, 64, 2}, 0.9},
    Row{{AttentionKind::mma, 64, 32, 2}, 0.75}, Row{{AttentionKind::mma, 32, 64, 2}, 0.3},
    Row{{AttentionKind::mma, 16, 64, 3}, 0.1},  Row{{AttentionKind::mma, 16, 32, 3}, 0.09},
};

// Registers of three consuming warpgroups hold less than those of two.
constexpr std::array k_wgmma_rows{
    Row{{AttentionKind::wgmma, 192, 128, 2}, 1.0}, Row{{AttentionKind::wgmma, 128, 128, 2}, 0.95},
    Row{{AttentionKind::wgmma, 128, 64, 2}, 0.8},  Row{{AttentionKind::wgmma, 64, 128, 2}, 0.6},
    Row{{AttentionKind::wgmma, 64, 64, 2}, 0.5},
};

constexpr std::array k_backward_mma_rows{
    Row{{AttentionKind::mma, 128, 64, 2}, 1.0}, Row{{AttentionKind::mma, 64, 64, 2}, 0.9},
    Row{{AttentionKind::mma, 64, 32, 2}, 0.8},  Row{{AttentionKind::mma, 32, 32, 2}, 0.3},
    Row{{AttentionKind::mma, 16, 16, 3}, 0.05},
};

constexpr std::array k_backward_wgmma_rows{
    Row{{AttentionKind::wgmma, 128, 64, 2}, 1.0},
    Row{{AttentionKind::wgmma, 64, 64, 2}, 0.7},
};

uint64_t across(int64_t extent, uint32_t tile) { return (static_cast<uint64_t>(extent) + tile - 1) / tile; }
uint64_t flags_bytes(uint64_t tiles) { return (tiles + 15) / 16 * 16; }
/// Tiles of keys in a part of them.
uint64_t part_tiles(const AttentionProblem& problem, const AttentionSchedule& s) {
  return (across(problem.forward->k_len, s.columns) + s.parts - 1) / s.parts;
}
uint64_t odd(int64_t width) { return static_cast<uint64_t>(width) | 1; }
uint64_t element_bytes(const AttentionProblem& problem) { return size_of(accumulator_of(problem.forward->dtype)); }
bool is_multiple(uint32_t value, uint32_t of) { return value > 0 && value % of == 0; }

bool claims_simple(const AttentionProblem& problem, const CudaTarget&) { return !uses_tensor_cores(problem); }

/// Each of 16 x 16 threads has rows and columns 16 apart.
bool makes_simple(const AttentionProblem&, const AttentionSchedule& s) {
  return is_multiple(s.rows, 16) && is_multiple(s.columns, 16) && s.rows <= 64 && s.columns <= 64 && s.stages == 1;
}

uint64_t simple_bytes(const AttentionProblem& problem, const AttentionSchedule& s) {
  const AttentionSpec& a = *problem.forward;
  return (s.rows * (odd(a.head_dim) + s.columns + 1) + s.columns * odd(std::max(a.head_dim, a.value_dim))) *
             element_bytes(problem) +
         flags_bytes(part_tiles(problem, s));
}

bool claims_mma(const AttentionProblem& problem, const CudaTarget&) { return uses_tensor_cores(problem); }

/// A warp has 16 rows; products of 16 columns.
bool makes_mma(const AttentionProblem&, const AttentionSchedule& s) {
  return is_multiple(s.rows, 16) && is_multiple(s.columns, 16) && s.rows <= 256 && s.columns <= 128 && s.stages >= 2 &&
         s.stages <= 8;
}

/// Of a row of a tile: whole slabs.
uint64_t slabs(int64_t depth) { return static_cast<uint64_t>((depth + 63) / 64) * 128; }

uint64_t mma_bytes(const AttentionProblem& problem, const AttentionSchedule& s) {
  const AttentionSpec& a = *problem.forward;
  return s.rows * slabs(a.head_dim) + uint64_t{s.stages} * s.columns * (slabs(a.head_dim) + slabs(a.value_dim)) +
         flags_bytes(part_tiles(problem, s));
}

/// Whether rows are pieces of 16 bytes that a tensor map can say the places of.
bool is_mapped(const AttentionColumns& columns, DType dtype) {
  const Access& access = *columns.access;
  const int64_t step = 16 / static_cast<int64_t>(size_of(dtype));
  if (access.offset % step != 0 || !access.indirect.empty()) return false;
  for (size_t d = 0; d < columns.extents.size(); ++d) {
    const int64_t stride = access.strides[d];
    const bool is_innermost = d + 1 == columns.extents.size();
    if (columns.extents[d] > 1 && (is_innermost ? stride != 1 : stride <= 0 || stride % step != 0)) return false;
  }
  return true;
}

/// A warpgroup has 64 rows: of fewer, most of its work would be for nothing.
bool claims_wgmma(const AttentionProblem& problem, const CudaTarget& target) {
  constexpr int64_t k_fewest_queries = 48;
  const auto all = columns_of(problem);
  return uses_tensor_cores(problem) && target.has_tma && problem.queries() >= k_fewest_queries &&
         std::ranges::all_of(all, [&](const auto& each) { return is_mapped(each, problem.forward->dtype); });
}

/// Of a thread's share of scores, how many times its registers an expression of them takes, at most.
int64_t registers_of_score(const AttentionSpec& a) {
  const auto is_load = [](const ScalarNode& node) { return node.op == ScalarOp::load; };
  if (a.score_value == k_no_expr) return 1;
  return std::ranges::any_of(a.score.exprs, is_load) ? 3 : 2;
}

/// Up to three warpgroups of 64 rows, which share the registers that the producer gives up; the widths that the prelude has
/// products of.
bool makes_wgmma(const AttentionProblem& problem, const AttentionSchedule& s) {
  constexpr int64_t k_other_registers = 32;
  const int64_t registers = s.rows > 128 ? 160 : 240, sums = (problem.forward->value_dim + 63) / 64 * 32,
                scores = s.columns / 2 * registers_of_score(*problem.forward), weights = s.columns / 4;
  return is_multiple(s.rows, 64) && s.rows <= 192 && is_multiple(s.columns, 64) && s.columns <= 256 && s.stages >= 2 &&
         s.stages <= 8 && sums + scores + weights + k_other_registers <= registers;
}

uint64_t wgmma_bytes(const AttentionProblem& problem, const AttentionSchedule& s) {
  const uint64_t barriers = uint64_t{s.stages} * 32;
  return mma_bytes(problem, s) + barriers;
}

uint64_t backward_simple_bytes(const AttentionProblem& problem, const AttentionSchedule& s) {
  const AttentionSpec& a = *problem.forward;
  return ((s.rows + s.columns) * (odd(a.head_dim) + odd(a.value_dim)) + 2 * s.rows * (s.columns + 1) +
          2 * std::max(s.rows, s.columns)) *
             element_bytes(problem) +
         flags_bytes(across(std::max(a.k_len, problem.queries()), s.columns));
}

/// A thread's gradients, scores and weights leave registers for addresses.
bool makes_backward_mma(const AttentionProblem& problem, const AttentionSchedule& s) {
  constexpr int64_t k_most_floats = 160;
  const AttentionSpec& a = *problem.forward;
  const int64_t depth = is_deep(problem) ? std::max(a.head_dim, a.value_dim) : a.head_dim + a.value_dim;
  return makes_mma(problem, s) && depth / 2 + s.columns <= k_most_floats;
}

uint64_t backward_mma_bytes(const AttentionProblem& problem, const AttentionSchedule& s) {
  const AttentionSpec& a = *problem.forward;
  const uint64_t row = slabs(a.head_dim) + slabs(a.value_dim), statistics = (s.columns * 8 + 127) / 128 * 128;
  return s.rows * (row + 8) + s.stages * (s.columns * row + statistics) +
         flags_bytes(across(std::max(a.k_len, problem.queries()), s.columns));
}

/// Two warpgroups: a thread's gradients, products of a tile and factors of one product leave registers for addresses.
bool makes_backward_wgmma(const AttentionProblem& problem, const AttentionSchedule& s) {
  constexpr int64_t k_registers = 240, k_other_registers = 32;
  const AttentionSpec& a = *problem.forward;
  const int64_t keys = (a.head_dim + 63) / 64 * 32, values = (a.value_dim + 63) / 64 * 32;
  const int64_t sums = is_deep(problem) ? std::max(keys, values) : keys + values;
  const int64_t products = s.columns / 2 * (1 + registers_of_score(a));
  return is_multiple(s.rows, 64) && s.rows <= 128 && is_multiple(s.columns, 64) && s.columns <= 256 && s.stages >= 2 &&
         s.stages <= 8 && sums + products + s.columns / 4 + k_other_registers <= k_registers;
}

uint64_t backward_wgmma_bytes(const AttentionProblem& problem, const AttentionSchedule& s) {
  const AttentionSpec& a = *problem.forward;
  const uint64_t row = slabs(a.head_dim) + slabs(a.value_dim), in_ring = uint64_t{s.stages} * s.columns;
  const uint64_t query_tiles = static_cast<uint64_t>(a.heads / a.kv_heads) * across(a.q_len, s.columns);
  return (s.rows + in_ring) * row + in_ring * slabs(a.value_dim) + uint64_t{s.stages} * 32 +
         std::max<uint64_t>(in_ring, s.rows) * 8 + flags_bytes(std::max(across(a.k_len, s.columns), query_tiles));
}

// Both lists in the order of their kinds: the last that claims a problem is best.
constexpr std::array k_forward{
    AttentionImplementation{"simple", &attention_simple_text, true, claims_simple, makes_simple, simple_bytes,
                            k_simple_rows},
    AttentionImplementation{"mma", &attention_mma_text, true, claims_mma, makes_mma, mma_bytes, k_mma_rows},
    AttentionImplementation{"wgmma", &attention_wgmma_text, false, claims_wgmma, makes_wgmma, wgmma_bytes,
                            k_wgmma_rows},
};
constexpr std::array k_backward{
    AttentionImplementation{"simple", &attention_backward_simple_text, true, claims_simple, makes_simple,
                            backward_simple_bytes, k_simple_rows},
    AttentionImplementation{"mma", &attention_backward_mma_text, true, claims_mma, makes_backward_mma,
                            backward_mma_bytes, k_backward_mma_rows},
    AttentionImplementation{"wgmma", &attention_backward_wgmma_text, false, claims_wgmma, makes_backward_wgmma,
                            backward_wgmma_bytes, k_backward_wgmma_rows},
};

std::span<const AttentionImplementation> implementations_of(const AttentionProblem& problem) {
  if (problem.backward != nullptr) return k_backward;
  return k_forward;
}

/// Whether the pass has parts of keys, and these not too many: combining goes through them one after another.
bool takes_parts(const AttentionProblem& problem, const AttentionSchedule& s) {
  constexpr uint32_t k_most_parts = 128;
  if (s.parts == 1) return true;
  return problem.backward == nullptr && s.parts > 1 && s.parts <= k_most_parts &&
         s.parts <= across(problem.forward->k_len, s.columns) &&
         problem.spec->buffers.size() < limits::k_kernel_buffers &&
         s.workspace_elements(problem) <= limits::k_launch_workspace_bytes / element_bytes(problem);
}

/// How many blocks the machine has at once. A multiprocessor has several where its shared memory holds them and they have no
/// more warps than it has schedulers, so that none slows another one down.
uint64_t blocks_at_once(const AttentionProblem& problem, const CudaTarget& target, const Machine& machine,
                        const AttentionSchedule& s) {
  constexpr uint32_t k_threads_of_schedulers = 4 * 32;
  const uint64_t by_memory = target.shared_bytes / s.shared_bytes(problem);
  return std::max(1u, machine.cores) *
         std::clamp<uint64_t>(k_threads_of_schedulers / s.threads(), 1, std::max<uint64_t>(by_memory, 1));
}

/// Time in units of a row and key at a multiprocessor's peak: whole waves of blocks. Of parts also that in which each wave
/// begins, that of another launch, and that of writing and reading what blocks leave.
double cost(const AttentionProblem& problem, const CudaTarget& target, const Machine& machine, const Row& row) {
  constexpr double k_beginning = 4096, k_launch = 16384, k_partial_row = 256;
  const AttentionSchedule& s = row.schedule;
  const double waves = std::ceil(static_cast<double>(s.blocks(problem)) /
                                 static_cast<double>(blocks_at_once(problem, target, machine, s)));
  const auto keys = std::min(static_cast<uint64_t>(problem.forward->k_len), part_tiles(problem, s) * s.columns);
  const double passing = s.rows / row.efficiency * static_cast<double>(std::max<uint64_t>(keys, 1));
  if (s.parts == 1) return waves * passing;
  const double partial_rows = static_cast<double>(problem.places() * problem.queries()) * s.parts;
  return waves * (passing + k_beginning) + k_launch + k_partial_row * partial_rows / std::max(1u, machine.cores);
}

/// The row with keys in as many parts as are soonest done; in one where others are not sooner done, or blocks are enough.
Row in_parts(const AttentionProblem& problem, const CudaTarget& target, const Machine& machine, const Row& row) {
  Row best = row, other = row;
  if (row.schedule.blocks(problem) >= blocks_at_once(problem, target, machine, row.schedule)) return best;
  for (++other.schedule.parts; takes_parts(problem, other.schedule); ++other.schedule.parts) {
    if (cost(problem, target, machine, other) < cost(problem, target, machine, best)) best = other;
  }
  return best;
}

}  // namespace

bool is_deep(const AttentionProblem& problem) {
  return problem.backward != nullptr && problem.forward->head_dim + problem.forward->value_dim > 256;
}

bool uses_tensor_cores(const AttentionProblem& problem) { return is_half(problem.forward->dtype); }

std::vector<AttentionColumns> columns_of(const AttentionProblem& problem) {
  const AttentionSpec& a = *problem.forward;
  std::vector<AttentionColumns> all{{&a.k, {a.batch, a.kv_heads, a.k_len, a.head_dim}},
                                    {&a.v, {a.batch, a.kv_heads, a.k_len, a.value_dim}}};
  if (problem.backward != nullptr) {
    all.push_back({&a.q, {a.batch, a.heads, a.q_len, a.head_dim}});
    all.push_back({&problem.backward->grad_out, {a.batch, a.heads, a.q_len, a.value_dim}});
    all.push_back({&a.out, {a.batch, a.heads, a.q_len, a.value_dim}});
  }
  return all;
}

uint32_t AttentionSchedule::threads() const {
  if (kind == AttentionKind::wgmma) return 128 * (1 + rows / 64);
  return kind == AttentionKind::mma ? rows * 2 : 256;
}

uint64_t AttentionSchedule::blocks(const AttentionProblem& problem) const {
  uint64_t tiles = across(problem.queries(), rows);
  if (problem.backward != nullptr) tiles += across(problem.forward->k_len, rows) * (splits(problem) ? 2 : 1);
  return static_cast<uint64_t>(problem.places()) * tiles * parts;
}

uint64_t AttentionSchedule::shared_bytes(const AttentionProblem& problem) const {
  return implementation_of(problem, kind)->shared_bytes(problem, *this) + k_shared_alignment_bytes;
}

uint64_t AttentionSchedule::workspace_elements(const AttentionProblem& problem) const {
  if (parts == 1) return 0;
  return static_cast<uint64_t>(problem.places() * problem.queries() * partial_width(problem)) * parts;
}

std::string AttentionSchedule::describe() const {
  std::string text =
      fmt::format("{} rows {} columns {} stages {}", k_forward[static_cast<size_t>(kind)].name, rows, columns, stages);
  if (parts > 1) text += fmt::format(" parts {}", parts);
  return text;
}

const AttentionImplementation* implementation_of(const AttentionProblem& problem, AttentionKind kind) {
  const auto list = implementations_of(problem);
  const auto index = static_cast<size_t>(kind);
  return index < list.size() ? &list[index] : nullptr;
}

std::vector<AttentionSchedule> ranked_schedules(const AttentionProblem& problem, const CudaTarget& target,
                                                const Machine& machine) {
  std::vector<AttentionSchedule> schedules;
  const auto list = implementations_of(problem);
  for (auto each = list.rbegin(); each != list.rend(); ++each) {
    if (!each->claims(problem, target)) continue;
    std::vector<Row> sorted;
    for (const Row& row : each->rows) {
      if (row.schedule.shared_bytes(problem) > target.shared_bytes || !each->makes(problem, row.schedule)) continue;
      sorted.push_back(row);
      const Row parted = in_parts(problem, target, machine, row);
      if (parted.schedule.parts > 1) sorted.push_back(parted);
    }
    std::ranges::stable_sort(sorted, {}, [&](const Row& row) { return cost(problem, target, machine, row); });
    std::ranges::transform(sorted, std::back_inserter(schedules), &Row::schedule);
  }
  return schedules;
}

AttentionSchedule schedule_for_any_address(const AttentionProblem& problem, const CudaTarget& target) {
  const auto schedules = ranked_schedules(problem, target, default_machine(target));
  return *std::ranges::find_if(schedules, [&](const AttentionSchedule& schedule) {
    return implementation_of(problem, schedule.kind)->takes_any_address;
  });
}

Schedule to_schedule(const AttentionSchedule& schedule) {
  return {encode_choices(schedule, k_forward[static_cast<size_t>(schedule.kind)].name), schedule.describe()};
}

Expected<AttentionSchedule> attention_schedule_of(std::span<const uint8_t> bytes, const AttentionProblem& problem,
                                                  const CudaTarget& target) {
  KILN_ASSIGN_OR_RETURN(const ScheduleBytes opened, open_schedule(bytes));
  const auto list = implementations_of(problem);
  const auto row = std::ranges::find(list, opened.implementation, &AttentionImplementation::name);
  if (row == list.end()) {
    return invalid_argument("cuda attention: no implementation \"{}\"", opened.implementation);
  }
  KILN_ASSIGN_OR_RETURN(AttentionSchedule schedule, parse_choices<AttentionSchedule>(bytes, row->name));
  schedule.kind = static_cast<AttentionKind>(row - list.begin());
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("cuda attention, {}: {}", schedule.describe(), why);
  };
  if (!row->claims(problem, target)) return refuse("not for this attention on this target");
  if (!row->makes(problem, schedule)) return refuse("the template makes no such tile");
  if (!takes_parts(problem, schedule)) return refuse("not so many parts of keys");
  if (schedule.shared_bytes(problem) > target.shared_bytes) return refuse("more shared memory than a block has");
  return schedule;
}

}  // namespace kiln::cuda
