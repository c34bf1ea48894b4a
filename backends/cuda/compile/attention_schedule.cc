#include "backends/cuda/compile/attention_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cuda/compile/texts.h"
#include "backends/schedule_bytes.h"

namespace kiln::cuda {
namespace {

using Kind = AttentionSchedule::Kind;
using Row = AttentionImplementation::Row;

constexpr uint64_t k_alignment_bytes = 1024;  // shared_memory() rounds its start up

constexpr std::array k_simple_rows{
    Row{{Kind::simple, 64, 64, 1}, 1.0},
    Row{{Kind::simple, 32, 32, 1}, 0.6},
    Row{{Kind::simple, 16, 16, 1}, 0.25},
};

// Registers hold 16 rows of results a warp, and as many of scores.
constexpr std::array k_mma_rows{
    Row{{Kind::mma, 128, 64, 2}, 1.0}, Row{{Kind::mma, 64, 64, 2}, 0.9}, Row{{Kind::mma, 64, 32, 2}, 0.75},
    Row{{Kind::mma, 32, 64, 2}, 0.6},  Row{{Kind::mma, 16, 64, 3}, 0.4},
};

constexpr std::array k_backward_mma_rows{
    Row{{Kind::mma, 128, 64, 2}, 1.0}, Row{{Kind::mma, 64, 64, 2}, 0.9}, Row{{Kind::mma, 64, 32, 2}, 0.8},
    Row{{Kind::mma, 32, 32, 2}, 0.6},  Row{{Kind::mma, 16, 16, 3}, 0.2},
};

uint64_t across(int64_t extent, uint32_t tile) { return (static_cast<uint64_t>(extent) + tile - 1) / tile; }
uint64_t flags_bytes(uint64_t tiles) { return (tiles + 15) / 16 * 16; }
uint64_t odd(int64_t width) { return static_cast<uint64_t>(width) | 1; }
uint64_t element_bytes(const AttentionProblem& problem) { return size_of(accumulator_of(problem.forward->dtype)); }
bool is_multiple(uint32_t value, uint32_t of) { return value > 0 && value % of == 0; }

bool claims_simple(const AttentionProblem& problem) { return !problem.uses_tensor_cores(); }

/// Each of 16 x 16 threads has rows and columns 16 apart.
bool makes_simple(const AttentionProblem&, const AttentionSchedule& s) {
  return is_multiple(s.rows, 16) && is_multiple(s.columns, 16) && s.rows <= 64 && s.columns <= 64 && s.stages == 1;
}

uint64_t simple_bytes(const AttentionProblem& problem, const AttentionSchedule& s) {
  const AttentionSpec& a = *problem.forward;
  return (s.rows * (odd(a.head_dim) + s.columns + 1) + s.columns * odd(std::max(a.head_dim, a.value_dim))) *
             element_bytes(problem) +
         flags_bytes(across(a.k_len, s.columns));
}

bool claims_mma(const AttentionProblem& problem) { return problem.uses_tensor_cores(); }

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
         flags_bytes(across(a.k_len, s.columns));
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
  const int64_t depth = problem.splits() ? std::max(a.head_dim, a.value_dim) : a.head_dim + a.value_dim;
  return makes_mma(problem, s) && depth / 2 + s.columns <= k_most_floats;
}

uint64_t backward_mma_bytes(const AttentionProblem& problem, const AttentionSchedule& s) {
  const AttentionSpec& a = *problem.forward;
  const uint64_t row = slabs(a.head_dim) + slabs(a.value_dim), statistics = (s.columns * 8 + 127) / 128 * 128;
  return s.rows * (row + 8) + s.stages * (s.columns * row + statistics) +
         flags_bytes(across(std::max(a.k_len, problem.queries()), s.columns));
}

// Both lists in the order of Kind: the last that claims a problem is best.
constexpr std::array k_forward{
    AttentionImplementation{"simple", &attention_simple_text, claims_simple, makes_simple, simple_bytes, k_simple_rows},
    AttentionImplementation{"mma", &attention_mma_text, claims_mma, makes_mma, mma_bytes, k_mma_rows},
};
constexpr std::array k_backward{
    AttentionImplementation{"simple", &attention_backward_simple_text, claims_simple, makes_simple,
                            backward_simple_bytes, k_simple_rows},
    AttentionImplementation{"mma", &attention_backward_mma_text, claims_mma, makes_backward_mma, backward_mma_bytes,
                            k_backward_mma_rows},
};

std::span<const AttentionImplementation> implementations_of(const AttentionProblem& problem) {
  if (problem.backward != nullptr) return k_backward;
  return k_forward;
}

/// Time in units of a row at peak: whole waves of blocks.
double cost(const AttentionProblem& problem, const Machine& machine, const Row& row) {
  const double blocks = static_cast<double>(row.schedule.blocks(problem));
  return std::ceil(blocks / std::max(1u, machine.cores)) * row.schedule.rows / row.efficiency;
}

}  // namespace

AttentionProblem attention_problem_of(const KernelSpec& spec) {
  AttentionProblem problem{.spec = &spec, .backward = std::get_if<AttentionBackwardSpec>(&spec.kernel)};
  problem.forward = problem.backward != nullptr ? &problem.backward->forward : &std::get<AttentionSpec>(spec.kernel);
  return problem;
}

uint32_t AttentionSchedule::threads() const { return kind == Kind::mma ? rows * 2 : 256; }

uint64_t AttentionSchedule::blocks(const AttentionProblem& problem) const {
  uint64_t tiles = across(problem.queries(), rows);
  if (problem.backward != nullptr)
    tiles += across(problem.forward->k_len, rows) * (kind == Kind::mma && problem.splits() ? 2 : 1);
  return static_cast<uint64_t>(problem.places()) * tiles;
}

uint64_t AttentionSchedule::shared_bytes(const AttentionProblem& problem) const {
  return implementation_of(problem, kind)->shared_bytes(problem, *this) + k_alignment_bytes;
}

std::string AttentionSchedule::describe() const {
  return fmt::format("{} rows {} columns {} stages {}", k_forward[static_cast<size_t>(kind)].name, rows, columns,
                     stages);
}

const AttentionImplementation* implementation_of(const AttentionProblem& problem, Kind kind) {
  const auto list = implementations_of(problem);
  const auto index = static_cast<size_t>(kind);
  return index < list.size() ? &list[index] : nullptr;
}

std::vector<AttentionSchedule> ranked_schedules(const AttentionProblem& problem, const CudaTarget& target,
                                                const Machine& machine) {
  std::vector<AttentionSchedule> schedules;
  const auto list = implementations_of(problem);
  for (auto each = list.rbegin(); each != list.rend(); ++each) {
    if (!each->claims(problem)) continue;
    std::vector<Row> sorted(each->rows.begin(), each->rows.end());
    std::ranges::stable_sort(sorted, {}, [&](const Row& row) { return cost(problem, machine, row); });
    for (const Row& row : sorted) {
      const bool fits = row.schedule.shared_bytes(problem) <= target.shared_bytes;
      if (fits && each->makes(problem, row.schedule)) schedules.push_back(row.schedule);
    }
  }
  return schedules;
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
  schedule.kind = static_cast<Kind>(row - list.begin());
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("cuda attention, {}: {}", schedule.describe(), why);
  };
  if (!row->claims(problem)) return refuse("not for this dtype");
  if (!row->makes(problem, schedule)) return refuse("the template makes no such tile");
  if (schedule.shared_bytes(problem) > target.shared_bytes) return refuse("more shared memory than a block has");
  return schedule;
}

}  // namespace kiln::cuda
