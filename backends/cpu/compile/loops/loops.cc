#include "backends/cpu/compile/loops/loops.h"

#include <algorithm>
#include <array>

#include "backends/cpu/compile/emit/body_emitter.h"
#include "backends/cpu/compile/loops/schedule.h"
#include "backends/cpu/compile/loops/sized.h"
#include "backends/loops_stages.h"
#include "backends/schedule_bytes.h"

// Loops kernels: pointwise, reductions, normalisations, gathers, scatters.
//
// The nest, outermost first: tasks, parallel dims, stages, reduced dims. Vectors take the place of the
// innermost parallel loop (then it lies around the stages, and lanes are rows) or of the innermost reduced
// loop (then a row's accumulators are vectors too, folded after the loop). Loops over lanes come in two
// parts: `unroll` full vectors a round, then the remainder one masked vector a round.
//
// Vectors in flight may lie along a parallel dim beside that of the lanes: then each part has one vector for each of a few of its
// indices. What these load from one address is loaded once, since code generation knows equal loads of a block by their
// address: a pointer that all share, and a constant.
//
// A floating sum's order is fixed by the schedule: element i goes to accumulator (i / lanes) mod unroll, the accumulators
// of each run of elements are added to those of the runs before, then to one another in order, and lanes are folded
// halves first. The number of threads has no part in it.
namespace kiln::cpu {
namespace {

using Scopes = std::vector<std::unique_ptr<Scope>>;

class LoopsEmitter {
 public:
  /// `sized`: the numbers that the launch carries; null: none.
  LoopsEmitter(Emitter& emitter, const KernelSpec& spec, const LoopsSpec& loops, const LoopsSchedule& schedule,
               SizedLoops* sized = nullptr)
      : e(emitter),
        m_spec(spec),
        m_loops(loops),
        m_schedule(schedule),
        m_grid(loops_grid(loops, schedule)),
        m_sized(sized),
        m_reduced_dims(reduced_dims(loops, schedule)) {
    for (const Stage& stage : loops.stages) m_roots.push_back(roots_of(m_loops, stage));
    for (const auto& roots : m_roots) m_all_roots.insert(m_all_roots.end(), roots.begin(), roots.end());
    for (const Stage& stage : loops.stages) {
      m_all_stores.insert(m_all_stores.end(), stage.stores.begin(), stage.stores.end());
    }
  }

  LaunchShape run() {
    const Emitter::Entry entry = e.begin_entry();
    Values buffers;
    for (uint32_t n = 0; n < m_spec.buffers.size(); ++n) buffers.push_back(e.buffer(entry, n));
    BodyEmitter body(e, m_spec, m_loops.body, buffers, entry.status);
    m_body = &body;
    body.set_result_dims((uint64_t{1} << m_loops.parallel_rank) - 1);
    body.set_lane_dim(m_schedule.lane_dim);
    body.set_changing_buffers(changing_buffers());

    if (m_sized != nullptr) {
      m_sized->launch.load(e, entry.extents);
      m_sized->body.launch = &m_sized->launch;
      body.set_numbers(m_sized->body);
    }
    plan_runs();

    const auto root = body.root();
    body.prepare(*root, m_all_roots, m_all_stores);
    if (m_sized != nullptr) {
      share(*root, entry);
    } else if (m_grid.tasks == 1) {
      parallel(0, *root, nullptr);
    } else {
      e.loop(entry.first_task, entry.last_task, 1, [&](llvm::Value* task) {
        const auto inside = body.nest(*root);
        parallel(0, *inside, task);
      });
    }
    e.ir.CreateRetVoid();
    // NOLINTNEXTLINE(clang-analyzer-core.StackAddressEscape): nobody uses this object after its run
    return {m_sized != nullptr ? 0 : static_cast<uint64_t>(m_grid.tasks), 0};
  }

 private:
  bool lanes_are_rows() const {
    return m_schedule.lane_dim >= 0 && m_schedule.lane_dim < static_cast<int>(m_loops.parallel_rank);
  }
  int64_t known_extent(int dim) const { return m_loops.extents[static_cast<size_t>(dim)]; }
  /// The launch's, where it carries it.
  llvm::Value* extent(int dim) {
    if (m_sized == nullptr) return e.index(known_extent(dim));
    return m_sized->launch.value(e, m_sized->extents[static_cast<size_t>(dim)], known_extent(dim));
  }

  /// Loaded and stored: what is loaded may differ from stage to stage.
  std::vector<bool> changing_buffers() const {
    std::vector<bool> stored(m_spec.buffers.size(), false);
    for (const Store& store : m_all_stores) stored[m_loops.body.accesses[store.access].buffer] = true;
    return stored;
  }

  // Parallel dims.

  using Range = std::pair<llvm::Value*, llvm::Value*>;

  /// What a round of the loop takes from `index` on.
  Range round_at(const LoopsGrid::Loop& loop, llvm::Value* index, llvm::Value* end) {
    llvm::Value* next = e.ir.CreateAdd(index, e.index(loop.step));
    return {index, loop.step == 1 ? next : e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, next, end)};
  }

  /// The bounds of the dim at `position` for a task; `task` numbers the rounds of the split dim and of those outside of it.
  Range bounds(size_t position, llvm::Value* task) {
    const auto split = static_cast<size_t>(m_grid.split);
    const LoopsGrid::Loop& loop = m_grid.order[position];
    const int64_t end = known_extent(loop.dim);
    if (task == nullptr || position > split) return {e.index(0), e.index(end)};
    int64_t inner = m_grid.chunks;
    for (size_t p = position + 1; p < split; ++p) inner *= m_grid.order[p].rounds;
    const auto quotient = [&](llvm::Value* value, int64_t divisor) {
      return divisor == 1 ? value : e.ir.CreateUDiv(value, e.index(divisor));
    };
    const auto rest = [&](llvm::Value* value, int64_t divisor) {
      return divisor == 1 ? e.index(0) : e.ir.CreateURem(value, e.index(divisor));
    };
    if (position < split) {
      llvm::Value* round = rest(quotient(task, inner), loop.rounds);
      return round_at(loop, e.ir.CreateMul(round, e.index(loop.step)), e.index(end));
    }
    llvm::Value* first = e.ir.CreateMul(rest(task, m_grid.chunks), e.index(m_grid.chunk));
    llvm::Value* last = e.ir.CreateAdd(first, e.index(m_grid.chunk));
    return {first, e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, last, e.index(end))};
  }

  /// The loops from `position` on; `rows`: those that the lanes run through, once their dim has its place.
  void parallel(size_t position, Scope& scope, llvm::Value* task, const std::optional<Range>& rows = {}) {
    if (position == m_grid.order.size()) return lanes_are_rows() ? over_rows(scope, *rows) : row(scope);
    const LoopsGrid::Loop& loop = m_grid.order[position];
    const bool is_of_lanes = loop.dim == m_schedule.lane_dim, is_last = position + 1 == m_grid.order.size();
    const bool is_of_vectors = loop.dim == m_schedule.unroll_dim;
    const Range range = bounds(position, task);
    if (is_of_lanes && is_last) return over_rows(scope, range);
    const auto inside_of = [&](llvm::Value* index) {
      const bool is_bound_later = is_of_lanes || is_of_vectors;
      const auto inside = is_bound_later ? m_body->nest(scope) : m_body->bind(scope, loop.dim, index);
      m_body->prepare(*inside, m_all_roots, m_all_stores);
      parallel(position + 1, *inside, task, is_of_lanes ? round_at(loop, index, range.second) : rows);
    };
    if (is_of_vectors) return over_vectors(loop, range, inside_of);
    // A dim outside of the split one has a single round per task: no loop.
    const bool is_single = task != nullptr && position < static_cast<size_t>(m_grid.split);
    is_single ? inside_of(range.first) : e.loop(range.first, range.second, loop.step, inside_of);
  }

  /// The loop that vectors in flight lie along: `unroll` a round, then those that are left of the dim.
  void over_vectors(const LoopsGrid::Loop& loop, const Range& range, const std::function<void(llvm::Value*)>& body) {
    llvm::Value* full = e.ir.CreateSub(range.second, e.ir.CreateURem(range.second, e.index(loop.step)));
    const auto rounds = [&](llvm::Value* begin, llvm::Value* end, int64_t vectors) {
      e.loop(begin, end, loop.step, [&](llvm::Value* index) {
        m_vectors = {index, vectors};
        body(index);
      });
    };
    rounds(range.first, full, loop.step);
    if (const int64_t left = known_extent(loop.dim) % loop.step; left > 0) rounds(full, range.second, left);
  }

  void over_rows(Scope& scope, const Range& rows) {
    over_lanes(scope, rows.first, rows.second, {}, [&](Scope& block, Scopes& lanes, const Values&) {
      stages_over_rows(block, lanes);
      return Values{};
    });
  }

  /// for lanes [begin, end) of the lane dim: `unroll` vectors a round, then masked ones. `reduced`: whose stage carries
  /// totals through them.
  using LanesBody = std::function<Values(Scope& block, Scopes& lanes, const Values& carried)>;
  Values over_lanes(Scope& scope, llvm::Value* begin, llvm::Value* end, const Values& initial, const LanesBody& body,
                    const Stage* reduced = nullptr) {
    const int64_t step = lane_step();
    llvm::Value* length = e.ir.CreateSub(end, begin);
    llvm::Value* full = e.ir.CreateAdd(begin, e.ir.CreateAnd(length, e.index(-step)));
    llvm::Value* run = reduced != nullptr ? m_runs.back() : nullptr;
    if (run != nullptr) run = e.ir.CreateMul(run, e.index(step));
    Values carried = in_runs(reduced, run, begin, full, step, initial, [&](llvm::Value* i, const Values& values) {
      const auto block = m_body->nest(scope);
      Scopes lanes = vectors_at(*block, i, step / m_schedule.lanes, nullptr);
      return body(*block, lanes, values);
    });
    if (step == 1) return carried;
    return e.loop(full, end, m_schedule.lanes, carried, [&](llvm::Value* i, const Values& values) {
      const auto block = m_body->nest(scope);
      llvm::Value* mask = e.prefix_mask(e.ir.CreateSub(end, i), m_schedule.lanes);
      if (const auto* known = llvm::dyn_cast<llvm::Constant>(mask); known != nullptr && known->isAllOnesValue()) {
        mask = nullptr;
      }
      Scopes lanes = vectors_at(*block, i, 1, mask);
      return body(*block, lanes, values);
    });
  }

  /// The vectors in flight whose lanes begin at `index`: `count` along the lanes, or those of their own dim.
  Scopes vectors_at(Scope& block, llvm::Value* index, int64_t count, llvm::Value* mask) {
    const bool has_dim = m_schedule.unroll_dim >= 0;
    Scopes vectors;
    for (int64_t u = 0; u < (has_dim ? m_vectors.count : count); ++u) {
      const int64_t offset = has_dim ? 0 : u * m_schedule.lanes;
      vectors.push_back(m_body->spread(block, m_schedule.lane_dim, index, offset, m_schedule.lanes, mask));
      if (has_dim) BodyEmitter::place(*vectors.back(), m_schedule.unroll_dim, m_vectors.first, u);
    }
    return vectors;
  }

  // Extents that the launch carries: points of the dims without lanes, row-major, are shared evenly by the tasks; where the
  // lane dim is the only one, its elements are, in whole rounds. One row is one task.

  llvm::Value* sized_tasks() { return m_sized->launch.value(e, m_sized->tasks, 0); }

  void share(Scope& root, const Emitter::Entry& entry) {
    std::vector<int> dims;
    for (const LoopsGrid::Loop& loop : m_grid.order) {
      if (!lanes_are_rows() || loop.dim != m_schedule.lane_dim) dims.push_back(loop.dim);
    }
    if (dims.empty()) return lanes_are_rows() ? share_lanes(root, entry) : row(root);
    Values extents;
    for (const int dim : dims) extents.push_back(extent(dim));
    llvm::Value* points = extents[0];
    for (size_t i = 1; i < extents.size(); ++i) points = e.ir.CreateMul(points, extents[i]);
    const auto share_of = [&](llvm::Value* task) { return e.even_start(task, points, sized_tasks()); };
    llvm::Value* first = share_of(entry.first_task);
    Values indices(dims.size());
    llvm::Value* rest = first;
    for (size_t i = dims.size(); i-- > 0;) {
      indices[i] = e.ir.CreateURem(rest, extents[i]);
      rest = e.ir.CreateUDiv(rest, extents[i]);
    }
    e.loop(first, share_of(entry.last_task), 1, indices, [&](llvm::Value*, const Values& at) {
      at_point(root, dims, at, 0);
      return next_point(at, extents);
    });
  }

  void at_point(Scope& scope, const std::vector<int>& dims, const Values& indices, size_t position) {
    if (position == dims.size()) {
      if (!lanes_are_rows()) return row(scope);
      return over_rows(scope, {e.index(0), extent(m_schedule.lane_dim)});
    }
    const auto inside = m_body->bind(scope, dims[position], indices[position]);
    m_body->prepare(*inside, m_all_roots, m_all_stores);
    at_point(*inside, dims, indices, position + 1);
  }

  Values next_point(const Values& indices, const Values& extents) {
    Values next(indices.size());
    llvm::Value* carry = e.index(1);
    for (size_t i = indices.size(); i-- > 0;) {
      llvm::Value* moved = e.ir.CreateAdd(indices[i], carry);
      llvm::Value* wraps = e.ir.CreateICmpEQ(moved, extents[i]);
      next[i] = e.ir.CreateSelect(wraps, e.index(0), moved);
      carry = e.ir.CreateZExt(wraps, e.i64());
    }
    return next;
  }

  void share_lanes(Scope& root, const Emitter::Entry& entry) {
    llvm::Value* end = extent(m_schedule.lane_dim);
    llvm::Value* rounds = e.ceil_div(end, e.index(lane_step()));
    const auto bound = [&](llvm::Value* task) {
      llvm::Value* round = e.even_start(task, rounds, sized_tasks());
      return e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, e.ir.CreateMul(round, e.index(lane_step())), end);
    };
    over_rows(root, {bound(entry.first_task), bound(entry.last_task)});
  }

  // Lanes are rows: all stages for a few vectors of rows.

  void stages_over_rows(Scope& block, Scopes& lanes) {
    for (const auto& scope : lanes) scope->reduced.assign(m_loops.reductions.size(), nullptr);
    for (size_t s = 0; s < m_loops.stages.size(); ++s) {
      const Stage& stage = m_loops.stages[s];
      for (const auto& scope : lanes) m_body->forget_changing(*scope);
      if (stage.per_row || m_reduced_dims.empty()) {
        finish(stage, lanes, accumulate(stage, lanes, identities(stage, lanes.size())));
        continue;
      }
      m_body->prepare(block, m_roots[s], stage.stores);
      for (const auto& scope : lanes) m_body->prepare(*scope, m_roots[s], stage.stores);
      const Values totals = reduced_loops(0, s, block, lanes, identities(stage, lanes.size()));
      finish(stage, lanes, totals);
    }
  }

  // Runs. Rounding errors of a long sum grow with its length, and faster than those of a sum of short sums (Higham,
  // "Accuracy and Stability of Numerical Algorithms", 2002, §4.2), so a long loop that carries totals is cut into runs.

  static constexpr int64_t k_longest_run = 128;  // elements added to one accumulator

  int64_t lane_step() const { return m_schedule.step_of(m_schedule.lane_dim); }
  /// Decides m_runs. A loop adds to the totals that it is given once for each iteration and element of the loops inside of
  /// it, or once for each run.
  void plan_runs() {
    const size_t lanes = m_reduced_dims.size();
    m_runs.assign(lanes + 1, nullptr);
    llvm::Value* additions = e.index(1);
    if (m_schedule.lane_dim >= 0 && !lanes_are_rows()) {
      llvm::Value* rounds = e.ir.CreateUDiv(extent(m_schedule.lane_dim), e.index(lane_step()));
      additions = plan_run(lanes, larger(e.index(1), rounds), additions);
    }
    for (size_t position = lanes; position-- > 0;) {
      additions = plan_run(position, extent(m_reduced_dims[position]), additions);
    }
  }
  /// Of a loop of `trips`, each of which adds `within` elements; gives how often the loop adds to what it is given.
  llvm::Value* plan_run(size_t position, llvm::Value* trips, llvm::Value* within) {
    llvm::Value* run = larger(e.index(1), e.ir.CreateUDiv(e.index(k_longest_run), within));
    llvm::Value* is_one = e.ir.CreateICmpULE(trips, run);
    const auto* known = llvm::dyn_cast<llvm::ConstantInt>(is_one);
    if (known == nullptr || known->isZero()) m_runs[position] = run;
    return e.ir.CreateSelect(is_one, e.ir.CreateMul(trips, within), e.ceil_div(trips, run));
  }
  /// Folds constants, as the intrinsic does not.
  llvm::Value* larger(llvm::Value* a, llvm::Value* b) { return e.ir.CreateSelect(e.ir.CreateICmpUGT(a, b), a, b); }
  /// for i in [begin, end) by step, carrying the totals of a stage; each `run` of the index (null: it is one) is summed by
  /// itself.
  Values in_runs(const Stage* stage, llvm::Value* run, llvm::Value* begin, llvm::Value* end, int64_t step,
                 const Values& initial, const Emitter::LoopBody& body) {
    if (run == nullptr || stage->reductions.empty()) return e.loop(begin, end, step, initial, body);
    const size_t count = stage->reductions.size();
    llvm::Value* runs = e.ceil_div(e.ir.CreateSub(end, begin), run);
    return e.loop(e.index(0), runs, 1, initial, [&](llvm::Value* number, const Values& totals) {
      llvm::Value* from = e.ir.CreateAdd(begin, e.ir.CreateMul(number, run));
      llvm::Value* to = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, e.ir.CreateAdd(from, run), end);
      const Values sums = e.loop(from, to, step, identities(*stage, totals.size() / count), body);
      Values next;
      for (size_t i = 0; i < sums.size(); ++i) {
        const Reduction& reduction = m_loops.reductions[stage->reductions[i % count]];
        next.push_back(m_body->scalars().combine(reduction.combiner, dtype_of(reduction), totals[i], sums[i]));
      }
      return next;
    });
  }
  Values over_reduced(const Stage& stage, size_t position, const Values& initial, const Emitter::LoopBody& body) {
    const int dim = m_reduced_dims[position];
    const bool is_known =
        m_sized == nullptr ? is_laid_out(m_loops, m_schedule, dim) : m_sized->is_laid_out[static_cast<size_t>(dim)];
    if (is_known) {
      Values carried = initial;
      for (int64_t i = 0; i < known_extent(dim); ++i) carried = body(e.index(i), carried);
      return carried;
    }
    return in_runs(&stage, m_runs[position], e.index(0), extent(dim), 1, initial, body);
  }

  /// Loops over the reduced dims; innermost, one pass over the element of each lane.
  Values reduced_loops(size_t position, size_t s, Scope& scope, Scopes& lanes, const Values& initial) {
    const Stage& stage = m_loops.stages[s];
    if (position == m_reduced_dims.size()) return accumulate(stage, lanes, initial);
    const int dim = m_reduced_dims[position];
    return over_reduced(stage, position, initial, [&](llvm::Value* index, const Values& carried) {
      const auto inside = m_body->bind(scope, dim, index);
      m_body->prepare(*inside, m_roots[s], stage.stores);
      Scopes joined;
      for (const auto& outer : lanes) joined.push_back(m_body->join(*inside, *outer));
      return reduced_loops(position + 1, s, *inside, joined, carried);
    });
  }

  // One row: stages over its elements.

  void row(Scope& scope) {
    scope.reduced.assign(m_loops.reductions.size(), nullptr);
    for (size_t s = 0; s < m_loops.stages.size(); ++s) {
      const Stage& stage = m_loops.stages[s];
      m_body->forget_changing(scope);
      m_body->prepare(scope, m_roots[s], stage.stores);
      if (stage.per_row || m_schedule.lane_dim < 0) {
        Scopes alone;
        alone.push_back(m_body->nest(scope));
        alone[0]->reduced.assign(m_loops.reductions.size(), nullptr);
        const Values totals = accumulate(stage, alone, identities(stage, 1));
        for (size_t r = 0; r < stage.reductions.size(); ++r) scope.reduced[stage.reductions[r]] = totals[r];
        continue;
      }
      const Values totals = element_loops(0, s, scope, identities(stage, static_cast<size_t>(m_schedule.unroll)));
      for (size_t r = 0; r < stage.reductions.size(); ++r) {
        scope.reduced[stage.reductions[r]] = fold(m_loops.reductions[stage.reductions[r]], stage, totals, r);
      }
    }
  }

  Values element_loops(size_t position, size_t s, Scope& scope, const Values& initial) {
    const Stage& stage = m_loops.stages[s];
    if (position == m_reduced_dims.size()) {
      return over_lanes(
          scope, e.index(0), extent(m_schedule.lane_dim), initial,
          [&](Scope&, Scopes& lanes, const Values& carried) { return accumulate(stage, lanes, carried); }, &stage);
    }
    const int dim = m_reduced_dims[position];
    return over_reduced(stage, position, initial, [&](llvm::Value* index, const Values& carried) {
      const auto inside = m_body->bind(scope, dim, index);
      m_body->prepare(*inside, m_roots[s], stage.stores);
      return element_loops(position + 1, s, *inside, carried);
    });
  }

  // Elements and reductions. Totals are ordered by vector, then by the stage's reductions.

  Values identities(const Stage& stage, size_t vectors) {
    Values totals;
    const int lanes = m_schedule.lane_dim < 0 || (stage.per_row && !lanes_are_rows()) ? 1 : m_schedule.lanes;
    for (size_t u = 0; u < vectors; ++u) {
      for (const uint32_t number : stage.reductions) {
        const Reduction& reduction = m_loops.reductions[number];
        totals.push_back(m_body->scalars().identity(reduction.combiner, dtype_of(reduction), lanes));
      }
    }
    return totals;
  }

  /// Evaluates the stage at the point of every scope: all values first, then what changes memory.
  Values accumulate(const Stage& stage, Scopes& scopes, Values totals) {
    const size_t count = stage.reductions.size();
    for (size_t u = 0; u < scopes.size(); ++u) {
      Scope& scope = *scopes[u];
      for (size_t r = 0; r < count; ++r) {
        llvm::Value*& total = totals[u * count + r];
        llvm::Value* next = with_value(m_loops.reductions[stage.reductions[r]], scope, total);
        // Lanes that do not exist keep their total; when lanes are rows, nobody looks at theirs.
        const bool masked = scope.mask != nullptr && !lanes_are_rows();
        total = masked ? e.ir.CreateSelect(scope.mask, next, total) : next;
      }
      for (const Store& store : stage.stores) m_body->evaluate(scope, store.value);
    }
    for (const auto& scope : scopes) {
      for (const Store& store : stage.stores) m_body->store(*scope, store);
    }
    return totals;
  }

  /// The total with the value at the scope's point. A product goes into a sum as it is, before it is rounded.
  llvm::Value* with_value(const Reduction& reduction, Scope& scope, llvm::Value* total) {
    const ScalarNode& node = m_loops.body.exprs[reduction.value];
    const bool is_real = is_floating(node.dtype) && accumulator_of(node.dtype) == node.dtype;
    if (reduction.combiner == Combiner::sum && node.op == ScalarOp::mul && is_real) {
      llvm::Value* factor = m_body->evaluate_lanes(scope, node.operands[0]);
      return e.fma(factor, m_body->evaluate_lanes(scope, node.operands[1]), total);
    }
    llvm::Value* value = m_body->evaluate_lanes(scope, reduction.value);
    value = m_body->scalars().to_accumulator(reduction.combiner, node.dtype, value);
    return m_body->scalars().combine(reduction.combiner, node.dtype, total, value);
  }

  void finish(const Stage& stage, Scopes& lanes, const Values& totals) {
    const size_t count = stage.reductions.size();
    for (size_t u = 0; u < lanes.size(); ++u) {
      for (size_t r = 0; r < count; ++r) lanes[u]->reduced[stage.reductions[r]] = totals[u * count + r];
    }
  }

  llvm::Value* fold(const Reduction& reduction, const Stage& stage, const Values& totals, size_t r) {
    const auto combine = [&](llvm::Value* a, llvm::Value* b) {
      return m_body->scalars().combine(reduction.combiner, dtype_of(reduction), a, b);
    };
    const size_t count = stage.reductions.size();
    llvm::Value* total = totals[r];
    for (size_t u = 1; u * count < totals.size(); ++u) total = combine(total, totals[u * count + r]);
    return e.fold_lanes(total, combine);
  }

  DType dtype_of(const Reduction& reduction) const { return m_loops.body.exprs[reduction.value].dtype; }

  Emitter& e;
  const KernelSpec& m_spec;
  const LoopsSpec& m_loops;
  const LoopsSchedule m_schedule;
  const LoopsGrid m_grid;
  SizedLoops* const m_sized;
  const std::vector<int> m_reduced_dims;     // without the lane dim
  std::vector<std::vector<ExprId>> m_roots;  // by stage
  std::vector<ExprId> m_all_roots;
  std::vector<Store> m_all_stores;
  struct {
    llvm::Value* first = nullptr;
    int64_t count = 0;
  } m_vectors;  // along their own dim: those that are emitted
  Values
      m_runs;  // of the loops over them, then of that over lanes: iterations that form a run, null where the loop is one
  BodyEmitter* m_body = nullptr;
};

Status loops_claims(const KernelSpec& spec, const CpuTarget&) {
  const auto& loops = std::get<LoopsSpec>(spec.kernel);
  if (loops.extents.size() > 60) {
    return error(StatusCode::unimplemented, "cpu: loops of {} dims, at most 60", loops.extents.size());
  }
  for (const ScalarNode& node : loops.body.exprs) {
    const ExprId operand = node.operands[node.op == ScalarOp::select ? 1 : 0];
    const DType dtype = operand == k_no_expr ? node.dtype : loops.body.exprs[operand].dtype;
    if (node.op != ScalarOp::load && !ScalarEmitter::supports(node.op, dtype)) {
      return error(StatusCode::unimplemented, "cpu: {} of {}", to_string(node.op), to_string(dtype));
    }
  }
  return {};
}

std::vector<Schedule> loops_schedules(const KernelSpec& spec, const CpuTarget& target, const Machine&) {
  std::vector<Schedule> schedules;
  for (const auto& schedule : ranked_schedules(simplified(std::get<LoopsSpec>(spec.kernel)), target)) {
    schedules.push_back({encode_choices(schedule), schedule.describe()});
  }
  return schedules;
}

Expected<LaunchShape> emit_loops(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<LoopsSchedule>(bytes));
  const LoopsSpec loops = simplified(std::get<LoopsSpec>(spec.kernel));
  KILN_RETURN_IF_ERROR(schedule.validate(loops, emitter.target()));
  return LoopsEmitter(emitter, spec, loops, schedule).run();
}

Expected<LaunchShape> emit_sized_loops(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<SizedLoopsSchedule>(bytes));
  const LoopsSpec loops = simplified(std::get<LoopsSpec>(spec.kernel));
  KILN_RETURN_IF_ERROR(schedule.validate(loops, emitter.target()));
  SizedLoops sized = SizedLoops::open(loops, schedule, loops_grid(loops, schedule).tasks);
  return LoopsEmitter(emitter, spec, loops, schedule, &sized).run();
}

constexpr std::array k_implementations{
    Implementation{LoopsSchedule::k_implementation, loops_claims, loops_schedules, emit_loops},
    Implementation{SizedLoopsSchedule::k_implementation, loops_claims, no_schedules, emit_sized_loops, sized_loops},
};

}  // namespace

std::span<const Implementation> loops_implementations() { return k_implementations; }

}  // namespace kiln::cpu
