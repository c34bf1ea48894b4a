#include "backends/level_zero/compile/attention_schedule.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backends/attention_scores.h"
#include "backends/level_zero/compile/matrix_unit.h"
#include "base/ceil_div.h"

namespace kiln::level_zero {
namespace {

/// A schedule, and how much of the peak its inner loops reach where tiles are many: an estimate, by the multiplications that
/// a load of local memory serves.
struct Row {
  AttentionSchedule schedule;
  double efficiency;
};

constexpr Row k_rows[] = {
    {{{8, 8, 4}, true}, 3.2}, {{{8, 8, 2}, true}, 3.0}, {{{8, 8, 1}, true}, 2.5}, {{{4, 8, 2}, true}, 2.3},
    {{{4, 8, 1}, true}, 2.2}, {{{8, 8, 2}}, 1.0},       {{{16, 4, 2}}, 0.9},      {{{8, 4, 2}}, 0.85},
    {{{8, 2, 2}}, 0.5},       {{{8, 2, 1}}, 0.4},       {{{8, 1, 1}}, 0.2},       {{{4, 1, 1}}, 0.15},
};

int64_t steps(int64_t depth) { return ceil_div(depth, k_sub_group_size); }

int64_t local_bytes(const AttentionProblem& problem, const AttentionSchedule& schedule) {
  const AttentionSpec& a = *problem.forward;
  const int64_t keys = attention_pitch(a.head_dim), both = keys + attention_pitch(a.value_dim);
  const int64_t rows = schedule.tile_rows(), columns = schedule.tile_columns();
  const auto sum_bytes = static_cast<int64_t>(size_of(accumulator_of(a.dtype)));
  const int64_t element_bytes = schedule.by_units ? static_cast<int64_t>(size_of(a.dtype)) : sum_bytes;
  const int64_t flags = leaves_out_scores(a.score, a.score_value) ? most_column_tiles(problem, schedule) : 0;
  if (problem.backward == nullptr) return (rows * keys + columns * both) * element_bytes + flags;
  const int64_t copies_of_columns = schedule.by_units ? 2 : 1;  // one for each product that they take part in
  return (rows + copies_of_columns * columns) * both * element_bytes + 2 * std::max(rows, columns) * sum_bytes + flags;
}

/// What a work-item keeps from tile to tile, the products of one tile, and a step's elements of its columns.
int64_t registers_by_lanes(const AttentionProblem& problem, const AttentionSchedule& schedule) {
  const AttentionSpec& a = *problem.forward;
  const int64_t keys = steps(a.head_dim), values = steps(a.value_dim), products = schedule.columns;
  const bool is_forward = problem.backward == nullptr;
  const int64_t of_row = is_forward ? values + products + 1 : keys + values + 2 * products + 4;
  const int64_t of_columns = is_forward ? values : std::max(keys, values);
  return (schedule.rows * of_row + of_columns) * static_cast<int64_t>(size_of(accumulator_of(a.dtype)) / 4);
}

/// The same by matrix units, which take vectors of halves and of pairs of these. Statistics of gradients are in local memory.
int64_t registers_by_units(const AttentionProblem& problem, const AttentionSchedule& schedule) {
  constexpr int64_t k_vectors = MatrixUnit::k_vector * 3 / 2;
  const int64_t keys = ceil_div(problem.forward->head_dim, schedule.lanes),
                values = ceil_div(problem.forward->value_dim, schedule.lanes);
  const bool is_forward = problem.backward == nullptr;
  const int64_t of_row = is_forward ? values + schedule.columns + 4 : keys + values + 2 * schedule.columns;
  return schedule.rows * of_row + k_vectors;
}

/// Why matrix units cannot make a schedule's products, or ok.
Status validate_units(const AttentionSchedule& schedule, const AttentionProblem& problem, const DeviceFamily& family) {
  const auto refuse = [&](std::string_view why) { return refused("attention", schedule, why); };
  if (!MatrixUnit::multiplies(problem.forward->dtype, family)) return refuse("no matrix units for such a dtype");
  if (schedule.lanes != family.matrix_lanes) return refuse("the family's matrix units work for other lanes");
  if (schedule.rows % MatrixUnit::k_rows != 0) return refuse("a sub-group's rows are not those of matrix units");
  if (schedule.tile_columns() % MatrixUnit::k_depth != 0) return refuse("columns are not whole depths of matrix units");
  return {};
}

int64_t registers_of(const AttentionProblem& problem, const AttentionSchedule& schedule) {
  return schedule.by_units ? registers_by_units(problem, schedule) : registers_by_lanes(problem, schedule);
}

int64_t fitting_registers(const AttentionSchedule& schedule, const DeviceFamily& family) {
  return schedule.by_units ? family.matrix_registers : family.registers;
}

bool spills(const AttentionProblem& problem, const AttentionSchedule& schedule, const DeviceFamily& family) {
  return registers_of(problem, schedule) > fitting_registers(schedule, family);
}

/// Time, in units of a row at peak: whole waves of work-groups.
double cost(const AttentionProblem& problem, const Machine& machine, const Row& row) {
  const auto groups = static_cast<double>(row.schedule.groups(problem));
  return std::ceil(groups / std::max(1U, machine.cores)) * static_cast<double>(row.schedule.tile_rows()) /
         row.efficiency;
}

}  // namespace

int64_t AttentionSchedule::groups(const AttentionProblem& problem) const {
  int64_t tiles = ceil_div(problem.queries(), tile_rows());
  if (problem.backward != nullptr) tiles += ceil_div(problem.forward->k_len, tile_rows());
  return problem.places() * tiles;
}

int64_t attention_pitch(int64_t depth) { return steps(depth) * k_sub_group_size + 1; }

int64_t most_column_tiles(const AttentionProblem& problem, const AttentionSchedule& schedule) {
  const int64_t keys = problem.forward->k_len;
  return ceil_div(problem.backward == nullptr ? keys : std::max(keys, problem.queries()), schedule.tile_columns());
}

Status validate(const AttentionSchedule& schedule, const AttentionProblem& problem, const DeviceFamily& family) {
  const auto refuse = [&](std::string_view why) { return refused("attention", schedule, why); };
  KILN_RETURN_IF_ERROR(validate("attention", schedule));
  if (schedule.by_units) KILN_RETURN_IF_ERROR(validate_units(schedule, problem, family));
  if (!schedule.by_units && schedule.lanes != k_sub_group_size) return refuse("a sub-group has other lanes");
  if (registers_of(problem, schedule) > 2 * fitting_registers(schedule, family))
    return refuse("too many sums for a lane");
  if (schedule.groups(problem) > k_max_groups) return refuse("too many work-groups");
  if (local_bytes(problem, schedule) > family.local_memory_bytes) return refuse("more local memory than a group has");
  return {};
}

std::vector<AttentionSchedule> ranked_schedules(const AttentionProblem& problem, const DeviceFamily& family,
                                                const Machine& machine) {
  std::vector<Row> fitting;
  for (Row row : k_rows) {
    if (row.schedule.by_units) row.schedule.lanes = static_cast<uint8_t>(family.matrix_lanes);
    if (validate(row.schedule, problem, family).ok()) fitting.push_back(row);
  }
  std::ranges::stable_sort(fitting, {}, [&](const Row& row) {
    return std::pair(spills(problem, row.schedule, family), cost(problem, machine, row));
  });
  std::vector<AttentionSchedule> schedules;
  for (const Row& row : fitting) schedules.push_back(row.schedule);
  return schedules;
}

}  // namespace kiln::level_zero
