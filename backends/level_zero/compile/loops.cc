#include <algorithm>
#include <bit>
#include <numeric>

#include "backends/level_zero/compile/body_emitter.h"
#include "backends/level_zero/compile/kernel.h"
#include "backends/loops_stages.h"
#include "backends/schedule_bytes.h"
#include "backends/simplified_loops.h"

// Loops kernels in one of two ways.
//
//   items   one work-item runs all stages of one parallel point, its reduced dims in loops. Neighbouring items are
//           neighbours along the parallel dim in which most accesses are adjacent.
//   rows    one work-group runs one parallel point: its items share the reduced dims, item i taking points i,
//           i + group, …; totals are combined in the sub-group by shuffles, then across sub-groups in local memory.
//
// A floating sum's order is fixed by the schedule. Stores whose order matters (adds, indirect addresses) along
// reduced dims need the first.
namespace kiln::level_zero {
namespace {

using spv::Op;

struct LoopsSchedule {
  static constexpr std::string_view k_implementation = "loops";
  static constexpr uint32_t k_version = 1;

  bool rows = false;
  uint32_t group_size = 256;

  static auto fields(auto& s) { return std::tie(s.rows, s.group_size); }
  std::string describe() const {
    return fmt::format("{} of {} work-items", rows ? "a row to a group" : "a point to an item, groups", group_size);
  }
};

constexpr uint32_t k_max_group = 256;

/// The dims of a (simplified) kernel as a schedule sees them.
struct LoopsDims {
  std::vector<size_t> parallel;  // the one that neighbouring items run along is last
  std::vector<size_t> reduced;   // in order
  int64_t points = 1, reduced_points = 1;

  explicit LoopsDims(const LoopsSpec& loops) : parallel(loops.parallel_rank) {
    std::iota(parallel.begin(), parallel.end(), 0);
    const auto best = std::max_element(parallel.rbegin(), parallel.rend(),
                                       [&](size_t x, size_t y) { return adjacent(loops, x) < adjacent(loops, y); });
    if (best != parallel.rend()) std::rotate(best.base() - 1, best.base(), parallel.end());
    for (size_t d = loops.parallel_rank; d < loops.extents.size(); ++d) reduced.push_back(d);
    points = points_of(loops.extents, parallel);
    reduced_points = points_of(loops.extents, reduced);
  }

  /// Accesses that are adjacent along a dim.
  static int64_t adjacent(const LoopsSpec& loops, size_t dim) {
    return std::count_if(loops.body.accesses.begin(), loops.body.accesses.end(),
                         [&](const Access& access) { return access.strides[dim] == 1; });
  }
};

uint32_t group_for(int64_t items) {
  return static_cast<uint32_t>(
      std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(items, k_sub_group_size, k_max_group))));
}

/// Whether a group's items may share a point's reduced dims.
bool may_share(const LoopsSpec& loops, const LoopsDims& dims) {
  const bool ordered = std::ranges::any_of(loops.stages, [&](const Stage& stage) { return is_ordered(loops, stage); });
  return dims.reduced_points > 1 && !ordered && dims.points <= k_max_groups;
}

std::vector<LoopsSchedule> ranked_schedules(const LoopsSpec& loops) {
  const LoopsDims dims(loops);
  const LoopsSchedule items{false, group_for(dims.points)};
  if (!may_share(loops, dims)) return {items};
  // Four elements or so to an item, so that combining them costs less than reading them.
  const LoopsSchedule rows{true, group_for(dims.reduced_points / 4)};
  constexpr int64_t k_enough_points = 8192;
  const int64_t along_row = LoopsDims::adjacent(loops, dims.reduced.back());
  const int64_t across = dims.parallel.empty() ? 0 : LoopsDims::adjacent(loops, dims.parallel.back());
  const bool prefers_rows = along_row > across || (dims.points < k_enough_points && dims.reduced_points >= 64);
  return prefers_rows ? std::vector{rows, items} : std::vector{items, rows};
}

/// Why there is no kernel of the schedule, or ok.
Status validate(const LoopsSchedule& schedule, const LoopsSpec& loops) {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("level zero loops, {}: {}", schedule.describe(), why);
  };
  if (!std::has_single_bit(schedule.group_size) || schedule.group_size < k_sub_group_size ||
      schedule.group_size > k_max_group) {
    return refuse("no such group");
  }
  const LoopsDims dims(loops);
  if (schedule.rows && !may_share(loops, dims)) return refuse("items cannot share a point");
  if (dims.points / schedule.group_size > k_max_groups) return refuse("too many work-groups");
  return {};
}

class LoopsEmitter {
 public:
  LoopsEmitter(Emitter& emitter, const KernelSpec& spec, const LoopsSpec& loops, const LoopsSchedule& schedule)
      : e(emitter),
        m_loops(loops),
        m_schedule(schedule),
        m_dims(loops),
        m_arguments(begin_kernel(emitter, spec, schedule.group_size)),
        m_changing(stored_buffers(spec, loops)),
        m_body(emitter, spec, loops.body, m_arguments, m_changing) {}

  uint32_t run() {
    Scope scope = m_body.root(m_loops.extents.size());
    scope.reduced.assign(m_loops.reductions.size(), 0);
    if (m_schedule.rows) {
      rows(scope);
      return static_cast<uint32_t>(m_dims.points);
    }
    const Id first = e.mul(e.group_id(), e.index(m_schedule.group_size));
    const Id number = e.add(first, e.local_id());
    const auto inside = [&] {
      Scope point = scope;
      open(point, m_dims.parallel, number, m_dims.points);
      items(point);
    };
    const bool is_whole = m_dims.points % m_schedule.group_size == 0;
    is_whole ? inside() : e.if_then(e.compare(Op::OpULessThan, number, e.index(m_dims.points)), inside);
    return static_cast<uint32_t>((m_dims.points + m_schedule.group_size - 1) / m_schedule.group_size);
  }

 private:
  static std::vector<bool> stored_buffers(const KernelSpec& spec, const LoopsSpec& loops) {
    std::vector<bool> stored(spec.buffers.size(), false);
    for (const Stage& stage : loops.stages) {
      for (const Store& store : stage.stores) stored[loops.body.accesses[store.access].buffer] = true;
    }
    return stored;
  }

  /// Opens `dims` at point `number` of `points`.
  void open(Scope& scope, const std::vector<size_t>& dims, Id number, int64_t points) {
    const Id type = counter_type(e, points);
    if (e.type_of(number) != type) number = e.op(Op::OpUConvert, type, {number});
    open_dims(e, scope.index, dims, m_loops.extents, number);
  }

  // One item, one parallel point.

  void items(Scope& scope) {
    for (const Stage& stage : m_loops.stages) {
      const std::vector<ExprId> roots = roots_of(m_loops, stage);
      m_body.prepare(scope, roots);
      const Ids totals = begin_totals(stage);
      stage.per_row ? element(stage, scope, totals) : reduced_loops(stage, roots, scope, totals, 0);
      for (size_t r = 0; r < totals.size(); ++r) scope.reduced[stage.reductions[r]] = e.load(totals[r]);
    }
  }

  void reduced_loops(const Stage& stage, std::span<const ExprId> roots, const Scope& scope, const Ids& totals,
                     size_t position) {
    if (position == m_dims.reduced.size()) return element(stage, scope, totals);
    const size_t dim = m_dims.reduced[position];
    e.loop(e.index(0), e.index(m_loops.extents[dim]), e.index(1), [&](Id index) {
      Scope inside = scope;
      inside.index[dim] = index;
      m_body.prepare(inside, roots);
      reduced_loops(stage, roots, inside, totals, position + 1);
    });
  }

  /// Evaluates the stage at one point: all values first, then what changes memory.
  void element(const Stage& stage, const Scope& scope, const Ids& totals) {
    Scope point = scope;
    Ids values;
    for (const uint32_t number : stage.reductions)
      values.push_back(m_body.evaluate(point, m_loops.reductions[number].value));
    for (const ExprId root : roots_of(m_loops, stage)) m_body.evaluate(point, root);
    for (size_t r = 0; r < totals.size(); ++r) {
      const Reduction& reduction = m_loops.reductions[stage.reductions[r]];
      const DType dtype = dtype_of(reduction);
      const Id value = m_body.scalars().to_accumulator(reduction.combiner, dtype, values[r]);
      e.store(totals[r], m_body.scalars().combine(reduction.combiner, dtype, e.load(totals[r]), value));
    }
    for (const Store& store : stage.stores) m_body.store(point, store);
  }

  Ids begin_totals(const Stage& stage) {
    Ids totals;
    for (const uint32_t number : stage.reductions) {
      const Reduction& reduction = m_loops.reductions[number];
      const Id identity = m_body.scalars().identity(reduction.combiner, dtype_of(reduction));
      totals.push_back(e.variable(e.type_of(identity)));
      e.store(totals.back(), identity);
    }
    return totals;
  }

  // One group, one parallel point.

  void rows(Scope& scope) {
    open(scope, m_dims.parallel, e.group_id(), m_dims.points);
    for (size_t s = 0; s < m_loops.stages.size(); ++s) {
      const Stage& stage = m_loops.stages[s];
      m_body.prepare(scope, roots_of(m_loops, stage));
      if (stage.per_row) {
        e.if_then(e.compare(Op::OpIEqual, e.local_id(), e.index(0)), [&] { element(stage, scope, {}); });
      } else {
        shared_loop(stage, scope);
      }
      if (conflicts_later(m_loops, s)) e.barrier(/*global_memory=*/true);
    }
  }

  void shared_loop(const Stage& stage, Scope& scope) {
    const Ids totals = begin_totals(stage);
    const Id type = counter_type(e, m_dims.reduced_points + m_schedule.group_size);
    const Id local = e.integer(64) == type ? e.local_id() : e.op(Op::OpUConvert, type, {e.local_id()});
    e.loop(local, e.constant(type, m_dims.reduced_points), e.constant(type, m_schedule.group_size), [&](Id number) {
      Scope point = scope;
      open(point, m_dims.reduced, number, m_dims.reduced_points + m_schedule.group_size);
      element(stage, point, totals);
    });
    for (size_t r = 0; r < totals.size(); ++r) {
      const uint32_t number = stage.reductions[r];
      scope.reduced[number] = combine_group(m_loops.reductions[number], e.load(totals[r]));
    }
  }

  /// The total of all items of the group, for each of them. Truth values travel as integers.
  Id combine_group(const Reduction& reduction, Id total) {
    ScalarEmitter& scalars = m_body.scalars();
    const bool logical = e.type_of(total) == e.boolean();
    const auto pack = [&](Id value) { return logical ? scalars.cast(value, DType::boolean, DType::i32) : value; };
    const auto unpack = [&](Id value) { return logical ? scalars.cast(value, DType::i32, DType::boolean) : value; };
    const auto combine = [&](Id a, Id b) { return scalars.combine(reduction.combiner, dtype_of(reduction), a, b); };
    total = unpack(combine_lanes(e, pack(total), [&](Id a, Id b) { return pack(combine(unpack(a), unpack(b))); }));
    const uint32_t sub_groups = m_schedule.group_size / k_sub_group_size;
    if (sub_groups == 1) return total;
    const Id packed = pack(total);
    const Id shared = e.local_array(e.type_of(packed), sub_groups);
    const Id is_first_lane = e.compare(Op::OpIEqual, e.lane(), e.constant(e.integer(32), 0));
    const auto alignment = static_cast<uint32_t>(logical ? 4 : size_of(accumulator_of(dtype_of(reduction))));
    e.if_then(is_first_lane, [&] { e.store(e.array_pointer(shared, e.widen(e.sub_group_id())), packed, alignment); });
    e.barrier(/*global_memory=*/false);
    total = unpack(e.load(e.array_pointer(shared, e.index(0)), alignment));
    for (uint32_t s = 1; s < sub_groups; ++s) {
      total = combine(total, unpack(e.load(e.array_pointer(shared, e.index(s)), alignment)));
    }
    return total;
  }

  DType dtype_of(const Reduction& reduction) const { return m_loops.body.exprs[reduction.value].dtype; }

  Emitter& e;
  const LoopsSpec& m_loops;
  const LoopsSchedule m_schedule;
  const LoopsDims m_dims;
  const KernelArguments m_arguments;
  const std::vector<bool> m_changing;
  BodyEmitter m_body;
};

}  // namespace

Status loops_claims(const KernelSpec& spec, const DeviceFamily& family) {
  const auto& loops = std::get<LoopsSpec>(spec.kernel);
  KILN_RETURN_IF_ERROR(claims_buffers(spec, family));
  KILN_RETURN_IF_ERROR(claims_body(loops.body, family));
  const int64_t points = LoopsDims(loops).points;
  if (points / k_sub_group_size > k_max_groups) {
    return error(StatusCode::unimplemented, "level zero: loops over {} points", points);
  }
  return {};
}

std::vector<Schedule> loops_candidates(const KernelSpec& spec, const DeviceFamily&, const Machine&) {
  std::vector<Schedule> schedules;
  for (const auto& schedule : ranked_schedules(simplified(std::get<LoopsSpec>(spec.kernel)))) {
    schedules.push_back({encode_choices(schedule), schedule.describe()});
  }
  return schedules;
}

Expected<EmittedKernel> emit_loops(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                   const DeviceFamily&) {
  const LoopsSpec loops = simplified(std::get<LoopsSpec>(spec.kernel));
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<LoopsSchedule>(bytes));
  KILN_RETURN_IF_ERROR(validate(schedule, loops));
  const uint32_t groups = LoopsEmitter(emitter, spec, loops, schedule).run();
  return EmittedKernel{{groups, schedule.group_size, static_cast<uint32_t>(spec.buffers.size())}};
}

}  // namespace kiln::level_zero
