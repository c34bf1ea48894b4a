#include <algorithm>

#include "backends/level_zero/compile/body_emitter.h"
#include "backends/level_zero/compile/kernel.h"
#include "backends/level_zero/compile/tile_schedule.h"
#include "backends/schedule_bytes.h"
#include "base/ceil_div.h"

// Matrix products. A work-group makes a tile of C; its sub-groups lie one above the other in it.
//
//   A   each sub-group holds its own rows in registers: for 16 values of k at a time, lane l has the one of k + l.
//       A shuffle hands the value of one k to all lanes.
//   B   16 x (tile columns), computed once by the whole group, in local memory; lane l uses columns l, l + 16, …
//   C   sums in registers: `rows` x `columns` of each lane.
//
// Operands are expressions: they are evaluated where they are read, at indices kept inside the matrix, and count as 0
// beyond it. Sums run along k in order, one multiply-add each, so the order is fixed whatever the tile.
namespace kiln::level_zero {
namespace {

using spv::Op;

constexpr uint32_t k_step = k_sub_group_size;  // of k

struct GemmSchedule : TileSchedule {
  static constexpr std::string_view k_implementation = "gemm";
  static constexpr uint32_t k_version = 1;
};

constexpr GemmSchedule k_schedules[] = {{8, 8, 4}, {4, 4, 2}, {2, 1, 4}};
constexpr int k_most_sums = 64;  // of a lane, in registers

int64_t batches_of(const GemmSpec& gemm) {
  int64_t batches = 1;
  for (const int64_t extent : gemm.batch) batches *= extent;
  return batches;
}

int64_t groups_of(const GemmSpec& gemm, const GemmSchedule& schedule) {
  return batches_of(gemm) * ceil_div(gemm.m, schedule.tile_rows()) * ceil_div(gemm.n, schedule.tile_columns());
}

int64_t local_bytes(const GemmSpec& gemm, const GemmSchedule& schedule) {
  return schedule.tile_columns() * k_step * static_cast<int64_t>(size_of(accumulator_of(gemm.dtype)));
}

/// Best first: least padding, weighed against how often operands are read again, and no more sums than registers hold.
std::vector<GemmSchedule> ranked_schedules(const GemmSpec& gemm, const DeviceFamily& family) {
  const auto cost = [&](const GemmSchedule& schedule) {
    const double computed = static_cast<double>(groups_of(gemm, schedule)) *
                            static_cast<double>(schedule.tile_rows() * schedule.tile_columns());
    constexpr double k_busy_groups = 64;  // fewer leave much of the device idle
    const double idle = std::max(1.0, k_busy_groups / static_cast<double>(groups_of(gemm, schedule)));
    const double loads = 1.0 / schedule.rows + 1.0 / schedule.columns;
    const int64_t words = static_cast<int64_t>(size_of(accumulator_of(gemm.dtype)) / 4);
    const int64_t registers = words * (schedule.rows * schedule.columns + schedule.rows + schedule.columns);
    return computed * idle * (1 + loads) * spilling(registers, family);
  };
  std::vector<GemmSchedule> schedules(std::begin(k_schedules), std::end(k_schedules));
  std::stable_sort(schedules.begin(), schedules.end(), [&](const auto& a, const auto& b) { return cost(a) < cost(b); });
  schedules.resize(2);
  return schedules;
}

class GemmEmitter {
 public:
  GemmEmitter(Emitter& emitter, const KernelSpec& spec, const GemmSpec& gemm, const GemmSchedule& schedule)
      : e(emitter),
        m_gemm(gemm),
        m_schedule(schedule),
        m_arguments(begin_kernel(emitter, spec, schedule.group_size())),
        m_a(emitter, spec, gemm.a, m_arguments),
        m_b(emitter, spec, gemm.b, m_arguments),
        m_epilogue(emitter, spec, gemm.epilogue, m_arguments) {}

  void run() {
    const std::vector<int64_t> grid{batches_of(m_gemm), ceil_div(m_gemm.m, m_schedule.tile_rows()),
                                    ceil_div(m_gemm.n, m_schedule.tile_columns())};
    Ids place(grid.size(), 0);
    Id number = e.group_id();
    if (groups_of(m_gemm, m_schedule) <= INT32_MAX) number = e.op(Op::OpUConvert, e.integer(32), {number});
    open_dims(e, place, {0, 1, 2}, grid, number);
    m_batch.assign(m_gemm.batch.size(), 0);
    std::vector<size_t> dims;
    for (size_t d = 0; d < m_gemm.batch.size(); ++d) dims.push_back(d);
    open_dims(e, m_batch, dims, m_gemm.batch, place[0]);
    const Id first_row = e.mul(place[1], e.index(m_schedule.tile_rows()));
    m_row = e.add(first_row, e.mul(e.widen(e.sub_group_id()), e.index(m_schedule.rows)));
    m_column = e.mul(place[2], e.index(m_schedule.tile_columns()));
    m_lane = e.widen(e.lane());
    begin_sums();
    if (m_gemm.k > 0) {
      m_tile = e.local_array(compute_type(), static_cast<uint32_t>(m_schedule.tile_columns()) * k_step);
      e.loop(e.index(0), e.index(m_gemm.k), e.index(k_step), [&](Id k) { step(k); });
    }
    finish_sums();
  }

 private:
  DType compute() const { return accumulator_of(m_gemm.dtype); }
  Id compute_type() { return m_a.scalars().register_type(compute()); }
  uint32_t alignment() const { return static_cast<uint32_t>(size_of(compute())); }

  void begin_sums() {
    for (int i = 0; i < m_schedule.rows * m_schedule.columns; ++i) {
      m_sums.push_back(e.variable(compute_type()));
      e.store(m_sums.back(), m_a.scalars().identity(Combiner::sum, compute()));
    }
  }

  /// The operand at (batch…, row, column), 0 outside of the matrix.
  Id operand(BodyEmitter& body, ExprId value, Id row, int64_t rows, Id column, int64_t columns) {
    Scope scope = body.root(m_batch.size() + 2);
    std::copy(m_batch.begin(), m_batch.end(), scope.index.begin());
    Id inside = 0;
    const auto keep = [&](Id index, int64_t extent) {
      const Id is_inside = e.compare(Op::OpULessThan, index, e.index(extent));
      inside = e.both(inside, is_inside);
      return e.select(is_inside, index, e.index(extent - 1));
    };
    scope.index[m_batch.size()] = keep(row, rows);
    scope.index[m_batch.size() + 1] = keep(column, columns);
    const Id number = body.scalars().cast(body.evaluate(scope, value), m_gemm.dtype, compute());
    return e.select(inside, number, body.scalars().zero(compute()));
  }

  /// All of the group takes part: 16 values of k.
  void step(Id k) {
    Ids a;
    for (int i = 0; i < m_schedule.rows; ++i) {
      const Id row = e.add(m_row, e.index(i));
      a.push_back(operand(m_a, m_gemm.a_value, row, m_gemm.m, e.add(k, m_lane), m_gemm.k));
    }
    fill_tile(k);
    e.barrier(/*global_memory=*/false);
    const Id narrow = e.integer(32);
    e.loop(e.constant(narrow, 0), e.constant(narrow, k_step), e.constant(narrow, 1), [&](Id inner) {
      Ids b;
      const Id line = e.add(e.mul(e.widen(inner), e.index(m_schedule.tile_columns())), m_lane);
      for (int j = 0; j < m_schedule.columns; ++j) {
        const Id element = e.add(line, e.index(int64_t{j} * k_sub_group_size));
        b.push_back(e.load(e.array_pointer(m_tile, element), alignment()));
      }
      for (int i = 0; i < m_schedule.rows; ++i) {
        const Id x = e.shuffle(a[static_cast<size_t>(i)], inner);
        for (int j = 0; j < m_schedule.columns; ++j) multiply_add(sum(i, j), x, b[static_cast<size_t>(j)]);
      }
    });
    e.barrier(/*global_memory=*/false);
  }

  /// Neighbouring items read neighbours along the dim in which more of B's accesses are adjacent.
  void fill_tile(Id k) {
    const size_t n_dim = m_batch.size() + 1;
    const auto adjacent = [&](size_t dim) {
      return std::count_if(m_gemm.b.accesses.begin(), m_gemm.b.accesses.end(),
                           [&](const Access& access) { return access.strides[dim] == 1; });
    };
    const bool along_k = adjacent(n_dim - 1) > adjacent(n_dim);
    const int64_t inner = along_k ? k_step : m_schedule.tile_columns();
    const int64_t elements = m_schedule.tile_columns() * k_step;
    e.loop(e.local_id(), e.index(elements), e.index(m_schedule.group_size()), [&](Id number) {
      const Id fast = e.op(Op::OpUMod, e.integer(64), {number, e.index(inner)});
      const Id slow = e.op(Op::OpUDiv, e.integer(64), {number, e.index(inner)});
      const Id line = along_k ? fast : slow, column = along_k ? slow : fast;
      const Id value = operand(m_b, m_gemm.b_value, e.add(k, line), m_gemm.k, e.add(m_column, column), m_gemm.n);
      const Id place = along_k ? e.add(e.mul(line, e.index(m_schedule.tile_columns())), column) : number;
      e.store(e.array_pointer(m_tile, place), value, alignment());
    });
  }

  void multiply_add(Id total, Id x, Id y) {
    const Id old = e.load(total), type = compute_type();
    const Id next = is_floating(compute()) ? e.math(OpenCLLIB::Fma, type, {x, y, old}) : e.add(e.mul(x, y), old);
    e.store(total, next);
  }

  void finish_sums() {
    const size_t rank = m_batch.size() + 2;
    for (int i = 0; i < m_schedule.rows; ++i) {
      const Id row = e.add(m_row, e.index(i));
      for (int j = 0; j < m_schedule.columns; ++j) {
        const Id column = e.add(e.add(m_column, m_lane), e.index(int64_t{j} * k_sub_group_size));
        const Id inside = e.both(e.compare(Op::OpULessThan, row, e.index(m_gemm.m)),
                                 e.compare(Op::OpULessThan, column, e.index(m_gemm.n)));
        e.if_then(inside, [&] {
          Scope scope = m_epilogue.root(rank);
          std::copy(m_batch.begin(), m_batch.end(), scope.index.begin());
          scope.index[rank - 2] = row;
          scope.index[rank - 1] = column;
          scope.accumulator = e.load(sum(i, j));
          for (const Store& store : m_gemm.stores) m_epilogue.evaluate(scope, store.value);
          for (const Store& store : m_gemm.stores) m_epilogue.store(scope, store);
        });
      }
    }
  }

  Id sum(int i, int j) const { return m_sums[static_cast<size_t>(i) * m_schedule.columns + j]; }

  Emitter& e;
  const GemmSpec& m_gemm;
  const GemmSchedule m_schedule;
  const KernelArguments m_arguments;
  BodyEmitter m_a, m_b, m_epilogue;
  Ids m_batch, m_sums;
  Id m_row = 0;     // the sub-group's first
  Id m_column = 0;  // the group's first
  Id m_lane = 0, m_tile = 0;
};

/// Why there is no kernel of the schedule, or ok.
Status validate(const GemmSchedule& schedule, const GemmSpec& gemm, const DeviceFamily& family) {
  const auto refuse = [&](std::string_view why) { return refused("gemm", schedule, why); };
  KILN_RETURN_IF_ERROR(validate("gemm", schedule));
  if (schedule.rows * schedule.columns > k_most_sums) return refuse("too many sums for a lane");
  if (groups_of(gemm, schedule) > k_max_groups) return refuse("too many work-groups");
  if (local_bytes(gemm, schedule) > family.local_memory_bytes) return refuse("more local memory than a group has");
  return {};
}

}  // namespace

Status gemm_claims(const KernelSpec& spec, const DeviceFamily& family) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  KILN_RETURN_IF_ERROR(claims_buffers(spec, family));
  if (!gemm.a_pieces.empty() || !gemm.b_pieces.empty()) {
    return error(StatusCode::unimplemented, "level zero: a product of an operand in pieces");
  }
  if (gemm.groups) return error(StatusCode::unimplemented, "level zero: a product of groups that data say");
  if (gemm.dtype == DType::boolean) return error(StatusCode::unimplemented, "level zero: a product of bool");
  for (const Body* body : {&gemm.a, &gemm.b, &gemm.epilogue}) KILN_RETURN_IF_ERROR(claims_body(*body, family));
  for (const GemmSchedule& schedule : k_schedules) {
    if (groups_of(gemm, schedule) > k_max_groups || local_bytes(gemm, schedule) > family.local_memory_bytes) {
      return error(StatusCode::unimplemented, "level zero: a product of {} x {} x {} is too large", gemm.m, gemm.n,
                   gemm.k);
    }
  }
  return {};
}

std::vector<Schedule> gemm_candidates(const KernelSpec& spec, const DeviceFamily& family, const Machine&) {
  std::vector<Schedule> schedules;
  for (const auto& schedule : ranked_schedules(std::get<GemmSpec>(spec.kernel), family)) {
    schedules.push_back({encode_choices(schedule), schedule.describe()});
  }
  return schedules;
}

Expected<LaunchForm> emit_gemm(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                               const DeviceFamily& family) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<GemmSchedule>(bytes));
  KILN_RETURN_IF_ERROR(validate(schedule, gemm, family));
  GemmEmitter(emitter, spec, gemm, schedule).run();
  return LaunchForm{static_cast<uint32_t>(groups_of(gemm, schedule)), schedule.group_size(),
                    static_cast<uint32_t>(spec.buffers.size())};
}

}  // namespace kiln::level_zero
